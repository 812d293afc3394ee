"""The contrastive Gauss-Newton curvature H: which pairs, in which geometry, in which structure.

Begin with ``by_class``: derivation, equations and code for a linear head, on one page. Next to it:
``_terms`` has the loss and what is summed, ``_margin`` weighs pairs that class sums cannot,
``_passes`` read the points, ``_structures`` hold H, and ``_ggn`` makes a schedule of passes for
every kind of pairs and every structure.
"""

from laplace_metric.curvature._terms import ContrastiveLoss

__all__ = [
    "ContrastiveLoss",
]
