"""A Gaussian over raw embeddings, and its direction: the projected normal on the unit sphere.

To first order in the spread, with ``u = loc/|loc|`` and ``r = |loc|``, the direction ``z/|z|`` of
``z ~ N(loc, C)`` has mean u and the tangent covariance (delta method)

    T = (I - u u^T) C (I - u u^T) / r^2

Samples are exact: draw z, divide by its length.

Covariances of a batch of embeddings, as sparse as the posterior that gives them.

DiagonalCovariance   diag(v_b)             diagonal posterior, linear head: [B, Z] numbers
RotatedCovariance    Q diag(v_b) Q^T       Kronecker posterior, linear head: [B, Z] and one Q
DenseCovariance      C_b                   everything else: [B, Z, Z]
PendingCovariance    one of these          computed when it is first read
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_broadcast, check_count, check_floating
from laplace_metric.distributions._von_mises_fisher import vmf_concentration
from laplace_metric.errors import DtypeError, InputError, NonFiniteError

if TYPE_CHECKING:
    from typing_extensions import Self


class EmbeddingDistribution(Protocol):
    """B independent distributions over R^Z or over the unit sphere in it."""

    @property
    def mean(self) -> Float[Tensor, "B Z"]:
        """The point that stands for each embedding in retrieval [B, Z]."""

    @property
    def variance(self) -> Float[Tensor, "B Z"]:
        """Per-coordinate variance around ``mean`` [B, Z]."""

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """von Mises-Fisher concentration kappa of the direction [B], in [0, inf]."""

    def sample(self, n: int, generator: Seed = None) -> Float[Tensor, "n B Z"]:
        """[n, B, Z], independent over n and B."""

    def select(self, index: Tensor | slice) -> Self:
        """The distributions at ``index`` of the batch."""

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """One batch out of several."""


def gaussian_draws(
    loc: Float[Tensor, "B Z"],
    covariance: Covariance,
    n: int,
    generator: Seed = None,
) -> Float[Tensor, "n B Z"]:
    """n independent draws [n, B, Z] of N(loc, C).

    Examples
    --------
    >>> from laplace_metric.distributions import DiagonalCovariance
    >>> gaussian_draws(torch.ones(1, 2), DiagonalCovariance(torch.zeros(1, 2)), 3).unique()
    tensor([1.])
    """
    shape, generator = (check_count("n", n, 0), *loc.shape), as_generator(generator)
    noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=loc.device)
    return covariance.color(noise).add_(loc)


class _OfACovariance:
    """Common part of both laws."""

    def __init__(
        self,
        loc: Float[Tensor, "B Z"],
        covariance: Float[Tensor, "B Z"] | Covariance | PendingCovariance,
    ) -> None:
        if not isinstance(covariance, (Covariance, PendingCovariance)):
            covariance = DiagonalCovariance(covariance)
        check_values("loc", loc, "" if isinstance(loc, Tensor) and loc.ndim == 2 else "[B, Z]")
        if covariance.shape != loc.shape:
            raise InputError(
                f"loc has shape {tuple(loc.shape)} and covariance {tuple(covariance.shape)}: pass "
                "one variance for each coordinate, or a covariance of as many embeddings."
            )
        self.loc, self._covariance = loc, covariance

    @property
    def covariance(self) -> Covariance:
        """C, computed now if it was not read before."""
        own = self._covariance
        return own.made if isinstance(own, PendingCovariance) else own

    def select(self, index: Tensor | slice) -> Self:
        """The distributions at ``index``."""
        return type(self)(self.loc[index], self.covariance.select(index))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """One batch out of several, whose covariances must be of one kind."""
        covariances = [part.covariance for part in parts]
        kinds = sorted({type(covariance).__name__ for covariance in covariances})
        if len(kinds) > 1:
            raise InputError(f"covariances are {', '.join(kinds)}: pass embeddings of one method.")
        return cls(torch.cat([p.loc for p in parts]), covariances[0].concatenate(covariances))


class Gaussian(_OfACovariance):
    """``z ~ N(loc, C)`` for each of B inputs.

    Parameters
    ----------
    loc : Tensor [B, Z]
    covariance : Covariance, or variances [B, Z] of independent coordinates

    Raises
    ------
    InputError
        For anything else, or shapes that do not fit.

    Examples
    --------
    >>> Gaussian(torch.zeros(2, 3), torch.ones(2, 3)).sample(5).shape
    torch.Size([5, 2, 3])
    """

    @property
    def mean(self) -> Float[Tensor, "B Z"]:
        """[B, Z]."""
        return self.loc

    @property
    def variance(self) -> Float[Tensor, "B Z"]:
        """[B, Z]."""
        return self.covariance.diagonal()

    @property
    def total_variance(self) -> Float[Tensor, " B"]:
        """tr C [B]."""
        return self.covariance.trace()

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """Concentration of the direction z / |z| [B]."""
        return ProjectedNormal(self.loc, self.covariance).concentration

    def sample(self, n: int, generator: Seed = None) -> Float[Tensor, "n B Z"]:
        """[n, B, Z]."""
        return gaussian_draws(self.loc, self.covariance, n, generator)


class ProjectedNormal(_OfACovariance):
    """``z / |z|`` for ``z ~ N(loc, C)``, for each of B inputs.

    Parameters
    ----------
    loc : Tensor [B, Z]
    covariance : Covariance, or variances [B, Z]
        Of the Gaussian before projection.

    Raises
    ------
    InputError
        For anything else, or shapes that do not fit.

    Examples
    --------
    >>> p = ProjectedNormal(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2))
    >>> p.mean, p.variance
    (tensor([[1., 0.]]), tensor([[0.0000, 0.2500]]))
    """

    @property
    def mean(self) -> Float[Tensor, "B Z"]:
        """The direction of ``loc`` [B, Z], unit length: the network's own embedding."""
        return nn.functional.normalize(self.loc, dim=-1)

    @property
    def variance(self) -> Float[Tensor, "B Z"]:
        """diag(T) [B, Z]."""
        return self.covariance.tangent_diagonal(self.mean) / self._squared_length

    @property
    def total_variance(self) -> Float[Tensor, " B"]:
        """tr T [B], without the variance of each coordinate."""
        return self.covariance.tangent_trace(self.mean) / self._squared_length[..., 0]

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """von Mises-Fisher kappa [B] from the resultant length ``R = (1 + tr T)^(-1/2)``.

        Exact to first order in tr T (where ``R = 1 - tr T / 2``), and for an isotropic C in high
        dimension, where ``R -> r / sqrt(r^2 + tr C)``.
        """
        resultant = (1 + self.total_variance).rsqrt()
        return vmf_concentration(resultant, self.loc.shape[-1])

    def sample(self, n: int, generator: Seed = None) -> Float[Tensor, "n B Z"]:
        """Exact draws [n, B, Z] of unit length."""
        z = gaussian_draws(self.loc, self.covariance, n, generator)
        return nn.functional.normalize(z, dim=-1)

    @property
    def _squared_length(self) -> Tensor:
        """r^2 [B, 1]."""
        return self.loc.square().sum(-1, keepdim=True)


# Covariances of a batch of embeddings, as sparse as the posterior that gives them.


def check_values(name: str, values: Tensor, shape: str = "") -> None:
    """``check_floating`` where it could fail; what our own sums give is seen at a glance."""
    usual = type(values) is Tensor and values.dtype in (torch.float32, torch.float64)
    if not usual or values.layout != torch.strided or values.is_meta or values.is_nested or shape:
        check_floating(name, values, shape)


class Covariance(ABC):
    """B positive semi-definite matrices C_b [Z, Z]."""

    @property
    def shape(self) -> torch.Size:
        """[B, Z]."""
        return self.diagonal().shape

    @abstractmethod
    def diagonal(self) -> Float[Tensor, "*B Z"]:
        """[B, Z]."""

    def trace(self) -> Float[Tensor, "*B"]:
        """tr C_b [B]."""
        return self.diagonal().sum(-1)

    @abstractmethod
    def apply(self, vectors: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B Z"]:
        """``C_b v_b`` [B, Z]."""

    @abstractmethod
    def color(self, noise: Float[Tensor, "n *B Z"]) -> Float[Tensor, "n *B Z"]:
        """Standard normal noise [n, B, Z] -> noise with these covariances."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "*B Z Z"]:
        """C [B, Z, Z]."""

    @abstractmethod
    def select(self, index: Any) -> Covariance:
        """Return the entries at ``index`` of the batch."""

    @classmethod
    @abstractmethod
    def concatenate(cls, parts: Sequence[Any]) -> Covariance:
        """One batch out of several."""

    def tangent_trace(self, u: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B"]:
        """``tr C - u^T C u`` [B] for unit u [B, Z], >= 0: the sum of ``tangent_diagonal``."""
        return self.tangent_diagonal(u).sum(-1)

    def tangent_diagonal(self, u: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B Z"]:
        """diag((I - u u^T) C (I - u u^T)) [B, Z] for unit u [B, Z], >= 0."""
        cu = self.apply(u)
        along = (u * cu).sum(-1, keepdim=True)
        return (self.diagonal() - 2 * u * cu + u.square() * along).clamp_min(0)  # up to rounding


def check_vectors(
    name: str, vectors: Tensor, shape: torch.Size, dtype: torch.dtype | None = None
) -> None:
    """Raise ``InputError`` unless these are floating vectors [..., Z] that fit [*B, Z]."""
    check_values(name, vectors)
    if dtype is not None and vectors.dtype != dtype:
        raise DtypeError(f"{name} is {vectors.dtype}, the covariance {dtype}: pass one type.")
    check_broadcast(**{name: vectors.shape}, covariance=shape)
    if vectors.shape[-1:] != shape[-1:]:
        raise InputError(f"{name} has shape {tuple(vectors.shape)}: pass [..., {shape[-1]}].")


@dataclass(frozen=True)
class DiagonalCovariance(Covariance):
    """``diag(v_b)``: variances [B, Z].

    Raises
    ------
    InputError
        For anything but a floating tensor.

    Examples
    --------
    >>> DiagonalCovariance(torch.tensor([[1.0, 4.0]])).color(torch.ones(1, 1, 2))
    tensor([[[1., 2.]]])
    """

    values: Tensor

    def __post_init__(self) -> None:
        check_values("covariance", self.values)
        if self.values.ndim == 0:
            raise InputError("covariance is a single number: pass [..., Z].")

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def diagonal(self) -> Float[Tensor, "*B Z"]:
        return self.values

    def apply(self, vectors: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B Z"]:
        check_vectors("vectors", vectors, self.values.shape)
        return self.values * vectors

    def color(self, noise: Float[Tensor, "n *B Z"]) -> Float[Tensor, "n *B Z"]:
        check_vectors("noise", noise, self.values.shape)
        return noise * self.values.sqrt()

    def dense(self) -> Float[Tensor, "*B Z Z"]:
        return torch.diag_embed(self.values)

    def select(self, index: Any) -> DiagonalCovariance:
        return DiagonalCovariance(self.values[index])

    @classmethod
    def concatenate(cls, parts: Sequence[DiagonalCovariance]) -> DiagonalCovariance:
        return cls(torch.cat([part.values for part in parts]))

    def tangent_diagonal(self, u: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B Z"]:
        """``(1 - u_k^2)^2 v_k + u_k^2 sum_{l != k} u_l^2 v_l``: no cancellation."""
        u2 = u.square()
        weighted = u2 * self.values
        others = (weighted.sum(-1, keepdim=True) - weighted).clamp_min(0)  # 0 up to rounding
        return (1 - u2).square() * self.values + u2 * others


@dataclass(frozen=True)
class RotatedCovariance(Covariance):
    """``Q diag(v_b) Q^T``: one orthogonal basis [Z, Z] for all, values [B, Z] in it."""

    basis: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        check_floating("basis", self.basis, "[Z, Z]")
        check_values("covariance", self.values)

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def diagonal(self) -> Float[Tensor, "*B Z"]:
        return self.values @ self.basis.square().mT

    def trace(self) -> Float[Tensor, "*B"]:
        return self.values.sum(-1)

    def apply(self, vectors: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B Z"]:
        check_vectors("vectors", vectors, self.values.shape, self.basis.dtype)
        return (self.values * (vectors @ self.basis)) @ self.basis.mT

    def tangent_trace(self, u: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B"]:
        """``sum_k (1 - w_k^2) v_k`` with ``w = Q^T u``, one product: no term is negative."""
        w2 = (u @ self.basis).square()
        return ((1 - w2).clamp_min(0) * self.values).sum(-1)

    def color(self, noise: Float[Tensor, "n *B Z"]) -> Float[Tensor, "n *B Z"]:
        check_vectors("noise", noise, self.values.shape, self.basis.dtype)
        return (noise * self.values.sqrt()) @ self.basis.mT

    def dense(self) -> Float[Tensor, "*B Z Z"]:
        return self.basis @ (self.values[..., None] * self.basis.mT)  # [B, Z, Z]

    def select(self, index: Any) -> RotatedCovariance:
        return RotatedCovariance(self.basis, self.values[index])

    @classmethod
    def concatenate(cls, parts: Sequence[RotatedCovariance]) -> RotatedCovariance:
        basis = parts[0].basis
        if not all(part.basis is basis or torch.equal(part.basis, basis) for part in parts):
            raise InputError("covariances of several posteriors: pass embeddings of one method.")
        return cls(basis, torch.cat([part.values for part in parts]))


@dataclass(frozen=True)
class DenseCovariance(Covariance):
    """C [B, Z, Z] itself."""

    matrices: Tensor

    def __post_init__(self) -> None:
        check_values("covariance", self.matrices)
        if self.matrices.element_size() < 4:
            raise DtypeError(f"covariance is {self.matrices.dtype}: pass float32 or float64.")
        if self.matrices.ndim < 2 or self.matrices.shape[-1] != self.matrices.shape[-2]:
            raise InputError(f"covariance has shape {tuple(self.matrices.shape)}: pass [B, Z, Z].")

    @property
    def shape(self) -> torch.Size:
        return self.matrices.shape[:-1]

    def diagonal(self) -> Float[Tensor, "*B Z"]:
        return self.matrices.diagonal(dim1=-2, dim2=-1)

    def apply(self, vectors: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B Z"]:
        check_vectors("vectors", vectors, self.matrices.shape[:-1], self.matrices.dtype)
        return (self.matrices @ vectors[..., None])[..., 0]  # [B, Z]

    def color(self, noise: Float[Tensor, "n *B Z"]) -> Float[Tensor, "n *B Z"]:
        check_vectors("noise", noise, self.matrices.shape[:-1], self.matrices.dtype)
        if noise.ndim != self.matrices.ndim:
            shape = ", ".join(map(str, self.shape))
            raise InputError(f"noise has shape {tuple(noise.shape)}: pass [n, {shape}].")
        if not bool(self.matrices.isfinite().all()):
            raise NonFiniteError("covariance holds NaN or infinity: there is no root to draw by.")
        values, vectors = torch.linalg.eigh(self.matrices)
        root = vectors * values.clamp_min(0).sqrt()[..., None, :]  # negative only by rounding
        return torch.einsum("...kl,n...l->n...k", root, noise)  # [n, B, Z]

    def dense(self) -> Float[Tensor, "*B Z Z"]:
        return self.matrices

    def select(self, index: Any) -> DenseCovariance:
        return DenseCovariance(self.matrices[index])

    @classmethod
    def concatenate(cls, parts: Sequence[DenseCovariance]) -> DenseCovariance:
        return cls(torch.cat([part.matrices for part in parts]))


class PendingCovariance:
    """A covariance that is computed when it is first read: ``made``.

    Parameters
    ----------
    shape : torch.Size
        [B, Z].
    compute : function of nothing
        Any thread may call it, more than once if several read at the same time.

    Examples
    --------
    >>> from laplace_metric.distributions import DiagonalCovariance, Gaussian
    >>> from laplace_metric.distributions._gaussian import PendingCovariance
    >>> shape, ones = torch.Size([2, 3]), torch.ones(2, 3)
    >>> pending = PendingCovariance(shape, lambda: print("now") or DiagonalCovariance(ones))
    >>> p = Gaussian(torch.zeros(2, 3), pending)
    >>> p.variance.sum(), p.variance.sum()
    now
    (tensor(6.), tensor(6.))
    """

    def __init__(self, shape: torch.Size, compute: Callable[[], Covariance]) -> None:
        self.shape, self._compute = shape, compute
        self._made: Covariance | None = None

    @property
    def made(self) -> Covariance:
        """The covariance."""
        made = self._made
        if made is None:
            made = self._made = self._compute()
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what was computed, not how: a function may close over anything."""
        return {**vars(self), "_made": self.made, "_compute": None}
