"""The contrastive Gauss-Newton curvature H: which pairs, in which geometry, in which structure.

Begin with ``by_class``: derivation, equations and code for a linear head, on one page. Beside it:
``_loss`` says what is differentiated, ``pair_weights`` weigh pairs that class sums cannot,
``terms`` say what is summed, ``passes`` read the points, ``structures`` hold H, and ``_ggn`` makes
a schedule of passes for every kind of pairs and every structure.
"""

from laplace_metric.curvature._loss import ContrastiveLoss

__all__ = [
    "ContrastiveLoss",
]
