"""Features of a pair -> the probability of a match, and the split that tests it.

_features           features of each pair of a query and a hit
_logistic_score     features -> a score, with its prior
_calibrators        a score -> a probability
_match_probability  both, of the features and the calibrator with the smallest held-out loss
_held_out           the one split: a fit, and what fits to other queries say of each
"""
