"""The contrastive Gauss-Newton curvature H: which pairs, in which geometry, in which structure.

Begin with ``by_class``: derivation, equations and code for a linear head, on one page. Next to it:

    which loss           ``_loss``
    which pairs          ``_all_pairs``, ``_batch``; weights in ``by_class``, ``_margin_pairs``
                         (with ``_margin_columns``), ``_mined_pairs``
    what is summed       ``_terms``: ``_jacobian_terms``, ``_layered_term`` (with ``_layer_sums``)
    who reads            ``_passes`` collect ``_statistics``, ``_schedule`` runs them, ``_audit``
                         checks that they read the same points
    in which structure   ``_structure_passes``, ``_nearest_kronecker``; H is a value of
                         ``_structures``, then a ``_spectral_curvature`` in one of ``_eigenbases``
"""

from laplace_metric.curvature._loss import ContrastiveLoss

__all__ = [
    "ContrastiveLoss",
]
