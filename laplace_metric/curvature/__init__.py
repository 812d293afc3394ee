"""The contrastive Gauss-Newton curvature H: which pairs, in which geometry, in which structure.

Begin with ``by_class``: derivation, equations and code for a linear head, on one page. Next to it:

    which loss           ``_loss``
    which pairs          ``_all_pairs``, ``_mined_pairs``; weights in ``by_class``,
                         ``_margin_pairs``
    what is summed       a ``_curvature_term``: ``_jacobian_terms`` for any head,
                         ``_layered_term`` (of ``_layer_sums``) for linear layers
    who reads            ``_passes`` collect ``_statistics``, and are run one after another
    in which structure   ``_all_pairs``, ``_nearest_kronecker``; H is a value of
                         ``_structures``, then a ``_spectral_curvature`` in one of ``_eigenbases``
"""

from laplace_metric.curvature._loss import ContrastiveLoss

__all__ = [
    "ContrastiveLoss",
]
