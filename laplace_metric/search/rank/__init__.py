"""Rankings: what is nearest means, and which ranking is taken.

_rankings        the rankings by name, with the vectors that an engine searches
_neighbours      k nearest items of each query, by distances of pairs where vectors are not enough
_chosen_ranking  the ranking of "auto", by labels of the items
"""
