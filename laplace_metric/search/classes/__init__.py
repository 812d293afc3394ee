"""Classes of a gallery: the model of them, sets of labels, labels to look at.

_class_model   log odds of each class, cross-fitted; _class_weights: its weights and temperature
_label_sets    sets of labels, or of items, that hold the right one
_label_review  items whose label is unlike their neighbours'
_near_names    labels that no item has, but for blanks or case
"""
