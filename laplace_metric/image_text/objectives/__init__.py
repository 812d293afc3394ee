"""Objectives of images and texts, and the curvature of each.

_objectives         the objectives by name, over all pairs of a batch
_losses             their losses
_csd, _inclusion    closed forms: distance of two Gaussians, inclusion of one in another
_membership         membership of a Gaussian in a region
_sigmoid_curvature, _softmax_curvature
                    second derivatives over all pairs
"""
