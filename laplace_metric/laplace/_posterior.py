"""The Laplace posterior over the head: ``q(theta) = N(theta_map, (n_eff H + tau I)^-1)``.

Closed-form predictive covariance of raw embeddings, ``Cov[z_x, z_y] = J_x S J_y^T``, with S the
posterior covariance ``Q diag(1/p) Q^T``:

    linear head,  identity basis     diag(sum_a x_a y_a S[k, a])           one product [B,A] x [A,Z]
    linear head,  Kronecker basis    Q_S diag(sum_a x~_a y~_a / p) Q_S^T   x~ = Q_A^T x
    layered head, either             sum over layers of M_x diag(...) M_y^T
    linear head,  dense basis        F_x F_y^T, F = (I (x) x^T) Q p^-1/2   one product a row of W
    any other                        the same with J materialised in blocks

No weights are sampled, and J is written out only where neither head nor basis has a structure.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.randomness import Seed, as_generator, full_precision
from laplace_metric._utils.validation import check_count, check_positive
from laplace_metric.curvature._structures import (
    DenseEigenbasis,
    Eigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
    SpectralCurvature,
)
from laplace_metric.distributions import Covariance, DenseCovariance, DiagonalCovariance
from laplace_metric.distributions._gaussian import RotatedCovariance
from laplace_metric.errors import InputError, NonFiniteError, PriorAtEdgeWarning, callers_line
from laplace_metric.heads._jacobian import (
    Affine,
    HeadJacobian,
    Layer,
    LinearJacobian,
    OrthogonalFactor,
    pad,
)


@dataclass(frozen=True, repr=False)
class Posterior(Shown):
    """A Gaussian over the head's parameters.

    Parameters
    ----------
    mean : Tensor [P]
        theta_map: the trained weights, in ``parameters_to_vector`` order.
    curvature : SpectralCurvature
        H, an average over pairs.
    n_effective : float
        n_eff turns the average into a sum over data (the paper leaves this temperature open).
    prior_precision : float
        tau of the isotropic Gaussian prior.

    Examples
    --------
    >>> from laplace_metric.curvature._structures import DiagCurvature
    >>> curvature = DiagCurvature(torch.tensor([1.0, 0.0])).decompose()
    >>> Posterior(torch.zeros(2), curvature, n_effective=3, prior_precision=1).variance
    tensor([0.2500, 1.0000])
    """

    mean: Tensor
    curvature: SpectralCurvature
    n_effective: float
    prior_precision: float

    def __post_init__(self) -> None:
        for name in ("prior_precision", "n_effective"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))

    def _sentence(self) -> str:
        return (
            f"a Gaussian over {len(self.mean):,} weights, of which the data determine "
            f"{self.n_effective_parameters:,.1f}."
        )

    def _shown_rows(self) -> Rows:
        shown = {
            "mean": self.mean,
            "structure": type(self.curvature.basis).__name__.removesuffix("Eigenbasis"),
            "prior_precision": self.prior_precision,
            "n_effective": self.n_effective,
            "negative curvature": f"{self.curvature.negative_fraction:.1%}",
        }
        return in_rows(shown.items())

    @cached_property
    def basis(self) -> Eigenbasis:
        """Q, the eigenvectors of the covariance, in the dtype of the weights."""
        return self.curvature.basis.to(self.mean)

    @cached_property
    def spectrum(self) -> Float[Tensor, " P"]:
        """Eigenvalues ``1 / (n_eff l + tau)`` of the covariance [P], in the weights' dtype."""
        precision = self.curvature.precision(self.n_effective, self.prior_precision)
        return precision.reciprocal().to(self.mean.dtype)

    @cached_property
    @full_precision()
    def variance(self) -> Float[Tensor, " P"]:
        """Diagonal of the covariance [P]."""
        return self.basis.diagonal(self.spectrum)

    @cached_property
    @full_precision()
    def rotated(self) -> tuple[Tensor, Affine, Tensor] | None:
        """One linear layer's ``C = Q_S diag(sum_a x_a^2 / p) Q_S^T``, with ``x = Q_A^T a``.

        Q_S [Z, Z], h -> x and 1 / p [A, Z], both padded; None of any other structure.
        """
        if not isinstance(self.basis, KroneckerEigenbasis) or len(self.basis.blocks) > 1:
            return None
        (block,) = self.basis.blocks
        to_basis = Affine.of(block.right, block.layout.n_features, padded=True)
        return block.left, to_basis, pad(block.fold(self.spectrum)).mT

    @property
    def n_effective_parameters(self) -> float:
        """``sum n_eff l / (n_eff l + tau)`` in [0, P]: directions that the data determine.

        (MacKay 1992, eq 2.22.)
        """
        gained = self.n_effective * self.curvature.eigenvalues
        return float((gained / (gained + self.prior_precision)).sum())

    def with_precision(self, prior_precision: float, n_effective: float | None = None) -> Posterior:
        """The same curvature under another prior precision, and another n_effective if given."""
        n = self.n_effective if n_effective is None else n_effective
        return replace(self, prior_precision=prior_precision, n_effective=n)

    @full_precision()
    def sample(self, n: int, generator: Seed = None) -> Float[Tensor, "n P"]:
        """``n`` parameter vectors [n, P]."""
        shape, source = (check_count("n", n), len(self.mean)), as_generator(generator)
        kind = self.mean.dtype, self.mean.device
        noise = torch.randn(shape, generator=source, dtype=kind[0], device=kind[1])
        return self.basis.from_eigenbasis(noise.mul_(self.spectrum.sqrt())).add(self.mean)

    def log_prior_and_determinant(self, prior_precision: float) -> float:
        """The part of the log marginal likelihood that depends on the prior precision tau.

        ``P/2 log tau - tau/2 |theta_map|^2 - 1/2 log det(n_eff H + tau I)``

        (Laplace's approximation of the evidence; the data term does not depend on tau.)
        """
        p, tau = len(self.mean), prior_precision
        log_det = float(self.curvature.precision(self.n_effective, tau).log().sum())
        return 0.5 * (
            p * float(torch.tensor(tau, dtype=torch.float64).log())
            - tau * float(self.mean.double().square().sum())
            - log_det
        )


JACOBIAN_BYTES = 64 * 2**20
"""Largest [b, Z, P] array that is materialised at once."""


def covariance(
    head: HeadJacobian,
    posterior: Posterior,
    features: Float[Tensor, "B D"],
    other: Float[Tensor, "B D"] | None = None,
) -> Covariance:
    """``J_x S J_y^T`` for the rows of h_x and h_y [B, D] (None: of h_x itself, the variance).

    With two inputs the B matrices are cross-covariances: neither symmetric nor semi-definite.
    """
    if isinstance(head, LinearJacobian) and posterior.rotated is not None and other is None:
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


def is_structured(head: HeadJacobian, posterior: Posterior) -> bool:
    """Return whether J and S have a structure to use, so that J is not written out."""
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
    products = x.inputs.square() if x is y else x.inputs * y.inputs
    v = products @ x.layout.fold(variances).mT
    if isinstance(x.factor, OrthogonalFactor):
        return DiagonalCovariance(v)
    return DenseCovariance((x.factor.dense(0) * v[:, None, :]) @ y.factor.dense(0).mT)


def _kronecker_term(
    x: Layer, y: Layer, variances: Tensor, block: KroneckerEigenblock
) -> Covariance:
    """``M_x Q_S diag(v) Q_S^T M_y^T`` with the inputs seen in Q_A."""
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
    """``F = J Q S^(1/2)`` [b, Z, P]; a linear head needs one product [b, A] x [A, P] a row."""
    if isinstance(head, LinearJacobian) and isinstance(posterior.basis, DenseEigenbasis):
        rows = head.layout.fold(posterior.basis.vectors.mT).permute(1, 2, 0)  # Q as [Z, A, P]
        rotated = (head.layout.augment(h) @ rows).transpose(0, 1)
    else:
        rotated = posterior.basis.to_eigenbasis(head.jacobian(h))
    return rotated * posterior.spectrum.sqrt()


# Tuning the prior precision: by the log marginal likelihood, or by a validation metric.


BOUNDS = (1e-6, 1e6)


def check_bounds(bounds: Sequence[float]) -> tuple[float, float]:
    """(low, high) with 0 < low < high, or ``InputError``."""
    pair = tuple(bounds) if isinstance(bounds, Sequence) or np.ndim(bounds) == 1 else ()
    if len(pair) != 2:
        raise InputError(f"bounds={bounds!r}: pass (low, high).")
    low, high = check_positive("bounds[0]", pair[0]), check_positive("bounds[1]", pair[1])
    if low >= high:
        raise InputError(f"bounds={bounds!r}: low must be below high.")
    return low, high


def by_marginal_likelihood(posterior: Posterior, bounds: Sequence[float] = BOUNDS) -> float:
    """tau that maximises the Laplace evidence, by a bounded scalar search over log tau.

    About 30 evaluations of O(P). At a maximum inside the range
    ``tau = P_eff / |theta|^2`` with ``P_eff = sum n h / (n h + tau)`` (MacKay 1992, eq 2.22).
    """
    from scipy.optimize import minimize_scalar

    low, high = check_bounds(bounds)

    def loss(log_tau: float) -> float:
        return -posterior.log_prior_and_determinant(math.exp(log_tau))

    grid = np.linspace(math.log(low), math.log(high), 25)
    best = int(np.argmin([loss(x) for x in grid]))  # the evidence may have several modes
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    log_tau = float(minimize_scalar(loss, bounds=around, method="bounded").x)
    return warn_at_edge(math.exp(log_tau), low, high)


def sizes(n_points: int) -> list[float]:
    """n_effective from a thousandth to a thousand times the fitted points."""
    return [n_points * 10.0**power for power in range(-3, 4)]


def by_validation(
    score: Callable[[float, float], float],
    bounds: Sequence[float],
    n_effective: Sequence[float],
    n_grid: int = 13,
) -> tuple[float, float]:
    """(tau, n_eff) with the highest ``score(tau, n_eff)``; ties take the largest tau.

    tau on a logarithmic grid within ``bounds``, n_eff one of those given.

    Raises
    ------
    NonFiniteError
        If the score is NaN everywhere (an undefined metric).
    """
    low, high = check_bounds(bounds)
    grid = [(float(tau), n) for tau in np.geomspace(high, low, n_grid) for n in n_effective]
    scores = np.array([score(tau, n) for tau, n in grid])
    if np.isnan(scores).all():
        raise NonFiniteError("the validation metric is NaN at every prior precision.")
    tau, n = grid[int(np.nanargmax(scores))]
    if len(n_effective) > 1:
        warn_at_edge(n, min(n_effective), max(n_effective), "n_effective")
    return warn_at_edge(tau, low, high), n


def warn_at_edge(value: float, low: float, high: float, name: str = "prior precision") -> float:
    """Return the value; warn when it lies within 2 % (of the log range) of an end."""
    position = math.log(value / low) / math.log(high / low)
    if position < 0.02 or position > 0.98:
        warnings.warn(
            f"the tuned {name} {value:.3g} is at the edge of the searched range "
            f"[{low:.3g}, {high:.3g}]: the data do not determine it there. Widen bounds=, or set "
            "prior_precision and n_effective yourself.",
            PriorAtEdgeWarning,
            stacklevel=callers_line(),
        )
    return value
