"""``laplace-metric image-text``: photographs found by texts, and texts by photographs.

pairs.json          the models, how images are read, the table, what was held out
imagetext.json      the heads and their posteriors
images/, texts/     an index of each, calibrated with texts and with images that were in no pair
                    of the fit
"""
