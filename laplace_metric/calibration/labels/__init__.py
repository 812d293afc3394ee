"""Which label is right: votes of neighbours, and what they tell.

_votes            what the labels of the nearest neighbours say
_label_posterior  a query -> P(label)
_label_shares     probabilities of all labels, which sum to those of groups
_levels           groups of labels, from fine to coarse
_label_sets       sets of labels that hold the right one
"""
