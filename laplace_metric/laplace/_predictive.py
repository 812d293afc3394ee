"""Closed-form predictive covariance of raw embeddings, ``Cov[z_x, z_y] = J_x S J_y^T``.

S is the posterior covariance ``Q diag(1/p) Q^T``. No weights are sampled, and J is written out only
where neither the head nor the basis has a structure to use:

    linear head,  identity basis     diag(sum_a x_a y_a S[k, a])           one product [B,A] x [A,Z]
    linear head,  Kronecker basis    Q_S diag(sum_a x~_a y~_a / p) Q_S^T   x~ = Q_A^T x
    layered head, either             sum over layers of M_x diag(...) M_y^T
    linear head,  dense basis        F_x F_y^T, F = (I (x) x^T) Q p^-1/2   one product a row of W
    any other                        the same with J materialised in blocks
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.curvature.structures import (
    DenseEigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
)
from laplace_metric.distributions import (
    Covariance,
    DenseCovariance,
    DiagonalCovariance,
    RotatedCovariance,
)
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.models.jacobians import HeadJacobian, Layer, LinearJacobian, OrthogonalFactor

JACOBIAN_BYTES = 64 * 2**20
"""Largest [b, Z, P] array that is materialised at once."""


def covariance(
    head: HeadJacobian, posterior: Posterior, features: Tensor, other: Tensor | None = None
) -> Covariance:
    """``J_x S J_y^T`` for the rows of h_x and h_y [B, D] (None: of h_x itself, the variance).

    With two inputs the B matrices are cross-covariances: neither symmetric nor semi-definite.
    """
    if factored(head, posterior):
        return _layered(head, posterior, features, other)
    step = jacobian_rows(head)
    parts = []
    for start in range(0, len(features), step):
        f_x = root(head, posterior, features[start : start + step])
        f_y = f_x if other is None else root(head, posterior, other[start : start + step])
        parts.append(f_x @ f_y.mT)
    return DenseCovariance(torch.cat(parts))


def factored(head: HeadJacobian, posterior: Posterior) -> bool:
    """Whether J and S have a structure to use, so that J is not written out."""
    return head.layered and isinstance(posterior.basis, (IdentityEigenbasis, KroneckerEigenbasis))


def jacobian_rows(head: HeadJacobian) -> int:
    """Rows of J that are written out at once."""
    return max(1, JACOBIAN_BYTES // (4 * head.n_outputs * head.n_parameters))


def _layered(head: HeadJacobian, posterior: Posterior, x: Tensor, y: Tensor | None) -> Covariance:
    left = head.layers(x) or []
    right = left if y is None else head.layers(y) or []
    variances = posterior.spectrum.split([layout.n_parameters for layout in head.layouts])
    if isinstance(posterior.basis, KroneckerEigenbasis):
        parts = zip(left, right, variances, posterior.basis.blocks, strict=True)
        terms = [_kronecker_term(*part) for part in parts]
    else:
        terms = [_diagonal_term(*part) for part in zip(left, right, variances, strict=True)]
    if len(terms) == 1:
        return terms[0]
    return DenseCovariance(torch.stack([term.dense() for term in terms]).sum(0))


def _diagonal_term(x: Layer, y: Layer, variances: Tensor) -> Covariance:
    """``M_x diag(v) M_y^T``, v [B, O] the (co)variances of the layer's own outputs."""
    v = (x.inputs * y.inputs) @ x.layout.fold(variances).mT
    if isinstance(x.factor, OrthogonalFactor):
        return DiagonalCovariance(v)
    return DenseCovariance((x.factor.dense(0) * v[:, None, :]) @ y.factor.dense(0).mT)


def _kronecker_term(
    x: Layer, y: Layer, variances: Tensor, block: KroneckerEigenblock
) -> Covariance:
    """``M_x Q_S diag(v) Q_S^T M_y^T`` with the inputs seen in Q_A."""
    v = ((x.inputs @ block.right) * (y.inputs @ block.right)) @ block.fold(variances).mT
    if isinstance(x.factor, OrthogonalFactor):
        return RotatedCovariance(block.left, v)
    m_x, m_y = (layer.factor.dense(0) @ block.left for layer in (x, y))
    return DenseCovariance((m_x * v[:, None, :]) @ m_y.mT)


def root(head: HeadJacobian, posterior: Posterior, h: Tensor) -> Tensor:
    """``F = J Q S^(1/2)`` [b, Z, P]; a linear head needs one product [b, A] x [A, P] a row."""
    if isinstance(head, LinearJacobian) and isinstance(posterior.basis, DenseEigenbasis):
        rows = head.layout.fold(posterior.basis.vectors.mT).permute(1, 2, 0)  # Q as [Z, A, P]
        rotated = (head.layout.augment(h) @ rows).transpose(0, 1)
    else:
        rotated = posterior.basis.to_eigenbasis(head.jacobian(h))
    return rotated * posterior.spectrum.sqrt()
