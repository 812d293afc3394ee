"""The predictive covariance of raw embeddings in closed form: ``Cov[z_x, z_y] = J_x S J_y^T``.

S is the posterior covariance ``Q diag(1/p) Q^T`` and J the Jacobian of the head:

    linear head,  identity basis     diag(sum_a x_a y_a S[k, a])           one product [B,A] x [A,Z]
    linear head,  Kronecker basis    Q_S diag(sum_a x~_a y~_a / p) Q_S^T   x~ = Q_A^T x
    layered head, either             sum over layers of M_x diag(...) M_y^T
    linear head,  dense basis        F_x F_y^T, F = (I (x) x^T) Q p^-1/2   one product a row of W
    any other                        the same with J materialised in blocks

No weights are sampled, and J is written out only where neither head nor basis has a structure.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.blocks import block_rows
from laplace_metric.curvature._eigenbases import (
    DenseEigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
)
from laplace_metric.distributions import Covariance, DenseCovariance, DiagonalCovariance
from laplace_metric.distributions._covariance import RotatedCovariance
from laplace_metric.heads._factors import OrthogonalFactor
from laplace_metric.heads._jacobian import JACOBIAN_BYTES, HeadJacobian
from laplace_metric.heads._layer import Layer
from laplace_metric.laplace._posterior import Posterior


def covariance(
    head: HeadJacobian,
    posterior: Posterior,
    features: Float[Tensor, "B D"],
    other: Float[Tensor, "B D"] | None = None,
) -> Covariance:
    """Compute ``J_x S J_y^T`` for each row of h_x and h_y.

    Parameters
    ----------
    head : HeadJacobian
        Jacobian of the head, J.
    posterior : Posterior
        Gaussian over the parameters of this head.
    features : Tensor [B, D]
        Inputs h_x of the head.
    other : Tensor [B, D] or None
        Inputs h_y. The B matrices are then cross-covariances, neither symmetric nor semi-definite.
        None: h_y = h_x, which gives the covariance of each embedding.
    """
    if head.linear and posterior.rotated is not None and other is None:
        left, to_basis, variances = posterior.rotated
        return RotatedCovariance(left, to_basis(features).square_() @ variances)
    if is_structured(head, posterior):
        return _layered(head, posterior, features, other)
    if not len(features):
        return DenseCovariance(features.new_zeros(0, head.n_outputs, head.n_outputs))
    step, parts = jacobian_rows(head), []
    others = features if other is None else other
    for x, y in zip(features.split(step), others.split(step), strict=True):
        f_x = covariance_factor(head, posterior, x)
        f_y = f_x if other is None else covariance_factor(head, posterior, y)
        parts.append(f_x @ f_y.mT)
    return DenseCovariance(torch.cat(parts))


def covariances_of_pairs(
    head: HeadJacobian,
    posterior: Posterior,
    x: Float[Tensor, "B D"],
    y: Float[Tensor, "B D"],
    *,
    spherical: bool,
) -> tuple[Covariance, Covariance, Covariance]:
    """Return covariances whose ``C(x, x) + C(y, y) - 2 C(x, y)`` is that of the pairs (x, y).

    Of a linear head and a Euclidean distance only x - y counts, since the covariance of the
    difference is that of W (x - y). They are then those of (x - y) / 2 and (y - x) / 2: what x and
    y have in common would drown their difference in float32.

    Parameters
    ----------
    head : HeadJacobian
        Jacobian of the head, J.
    posterior : Posterior
        Gaussian over the parameters of this head.
    x, y : Tensor [B, D]
        Inputs of the head, row by row.
    spherical : bool
        True if embeddings are directions, whose distance depends on each of them.
    """
    if head.linear and not spherical:
        half = (x - y) / 2
        x, y = half, -half
    xx, yy = (covariance(head, posterior, side) for side in (x, y))
    return xx, yy, covariance(head, posterior, x, y)


def is_structured(head: HeadJacobian, posterior: Posterior) -> bool:
    """Return whether J and S have a structure to use, so that J is not written out."""
    return head.layered and isinstance(posterior.basis, (IdentityEigenbasis, KroneckerEigenbasis))


def jacobian_rows(head: HeadJacobian) -> int:
    """Return the number of inputs whose J is written out at once."""
    return block_rows(4 * head.n_outputs * head.n_parameters, JACOBIAN_BYTES)


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
    """Return ``M_x diag(v) M_y^T``, v [B, O] the (co)variances of the layer's own outputs."""
    # J = M (x) a^T with V [O, A] the variances of the weights: v_o = sum_a V_oa x_a y_a, by one
    # product [B, A] x [A, O], and no J [Z, P] is written out
    products = x.inputs.square() if x is y else x.inputs * y.inputs
    v = products @ x.layout.fold(variances).mT
    if isinstance(x.factor, OrthogonalFactor):
        return DiagonalCovariance(v)
    return DenseCovariance((x.factor.dense(0) * v[:, None, :]) @ y.factor.dense(0).mT)


def _kronecker_term(
    x: Layer, y: Layer, variances: Tensor, block: KroneckerEigenblock
) -> Covariance:
    """Return ``M_x Q_S diag(v) Q_S^T M_y^T`` with the inputs seen in Q_A."""
    # J (Q_S (x) Q_A) = (M Q_S) (x) (Q_A^T a)^T: there the weights' variances are the spectrum
    seen = x.inputs @ block.right
    products = seen.square_() if x is y else seen.mul_(y.inputs @ block.right)
    v = products @ block.fold(variances).mT
    if isinstance(x.factor, OrthogonalFactor):
        return RotatedCovariance(block.left, v)
    m_x, m_y = (layer.factor.dense(0) @ block.left for layer in (x, y))
    return DenseCovariance((m_x * v[:, None, :]) @ m_y.mT)


def covariance_factor(
    head: HeadJacobian, posterior: Posterior, h: Float[Tensor, "b D"]
) -> Float[Tensor, "b Z P"]:
    """Return ``F = J Q S^(1/2)`` [b, Z, P]; of a linear head by one product a row."""
    if head.linear and isinstance(posterior.basis, DenseEigenbasis):
        # J_z = [h; 1]^T acts on the rows of output z alone: Z products [b, A] x [A, P] for J Q, Z
        # times fewer than with J [b, Z, P] written out
        (layout,) = head.layouts
        rows = layout.fold(posterior.basis.vectors.mT).permute(1, 2, 0)  # Q as [Z, A, P]
        rotated = (layout.augment(h) @ rows).transpose(0, 1)
    else:
        rotated = posterior.basis.to_eigenbasis(head.jacobian(h))
    return rotated * posterior.spectrum.sqrt()
