"""Rules: a threshold, its guarantee, and what it gives.

_rule            a threshold, what is guaranteed, and the calibration that tested it
_class_rule      a rule with a threshold of each class
_level_rule      a rule that answers with a coarser group where the label is not sure
_compared        the one comparison: probabilities with a threshold, a rule with its calibration
_answers         what a rule gives: a label, or none with the reason
_gallery_change  what a guarantee still covers when the gallery has changed
_searched_among  a search among some items, and what a guarantee says of it
_guarantee       a rule of probabilities of yours
_rule_graph      a rule of scores as a graph, for which torch is needed
"""
