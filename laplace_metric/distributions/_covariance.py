"""Covariances of a batch of embeddings, as sparse as the posterior that gives them.

DiagonalCovariance   diag(v_b)             diagonal posterior, linear head: [B, Z] numbers
RotatedCovariance    Q diag(v_b) Q^T       Kronecker posterior, linear head: [B, Z] and one Q
DenseCovariance      C_b                   everything else: [B, Z, Z]
PendingCovariance    one of these          computed when it is first read
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.validation import check_broadcast, check_floating
from laplace_metric.distributions._round_chord import FEW, dense_chord, round_chord, spectral_chord
from laplace_metric.errors import DtypeError, InputError, NonFiniteError

# Covariances of a batch of embeddings, as sparse as the posterior that gives them.


def check_values(name: str, values: Tensor, shape: str = "") -> None:
    """Call ``check_floating``, except for a plain float tensor, which passes without a cost."""
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
        """Return the variances of the coordinates [B, Z]."""

    def trace(self) -> Float[Tensor, "*B"]:
        """Return tr C_b [B]."""
        return self.diagonal().sum(-1)

    @abstractmethod
    def apply(self, vectors: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B Z"]:
        """Return ``C_b v_b`` [B, Z]."""

    @abstractmethod
    def color(self, noise: Float[Tensor, "n *B Z"]) -> Float[Tensor, "n *B Z"]:
        """Turn standard normal noise [n, B, Z] into noise with these covariances."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "*B Z Z"]:
        """Return C [B, Z, Z]."""

    @abstractmethod
    def select(self, index: Any) -> Covariance:
        """Return the entries at ``index`` of the batch."""

    @classmethod
    @abstractmethod
    def concatenate(cls, parts: Sequence[Any]) -> Covariance:
        """Return one batch of several."""

    def spectrum(self) -> tuple[Tensor | None, Tensor]:
        """Return an orthogonal Q, [Z, Z] or [B, Z, Z], and the eigenvalues of C [B, Z] in it.

        None is the identity. Where a kind of covariance knows none, that of ``dense``: O(B Z^3).
        """
        values, vectors = torch.linalg.eigh(self.dense())
        return vectors, values.clamp_min(0)  # C may be singular, or negative by rounding

    def chord(self, mean: Float[Tensor, "B Z"]) -> Float[Tensor, " B"]:
        """Return ``E |z/|z| - m/|m||^2`` [B] for ``z ~ N(m, C)``; infinite at m = 0."""
        basis, values = self.spectrum()
        return spectral_chord(turned(mean, basis), values)

    def tangent_trace(self, u: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B"]:
        """Return ``tr C - u^T C u`` [B] for unit u [B, Z], the sum of ``tangent_diagonal``."""
        return self.tangent_diagonal(u).sum(-1)

    def tangent_diagonal(self, u: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B Z"]:
        """Return diag((I - u u^T) C (I - u u^T)) [B, Z] for unit u [B, Z], >= 0."""
        # entry k of P C P is C_kk - 2 u_k (C u)_k + u_k^2 u^T C u: C u is all that is needed of C
        cu = self.apply(u)
        along = (u * cu).sum(-1, keepdim=True)
        return (self.diagonal() - 2 * u * cu + u.square() * along).clamp_min(0)  # up to rounding


def turned(vectors: Float[Tensor, "B Z"], basis: Tensor | None) -> Float[Tensor, "B Z"]:
    """Return ``Q^T v`` of each row, Q [Z, Z] or [B, Z, Z]; None is the identity."""
    if basis is None:
        return vectors
    return vectors @ basis if basis.ndim == 2 else (vectors[:, None, :] @ basis)[:, 0]


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

    def spectrum(self) -> tuple[Tensor | None, Tensor]:
        return None, self.values

    def tangent_diagonal(self, u: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B Z"]:
        """Return ``(1 - u_k^2)^2 v_k + u_k^2 sum_{l != k} u_l^2 v_l``: no term cancels."""
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

    def spectrum(self) -> tuple[Tensor | None, Tensor]:
        return self.basis, self.values

    def tangent_trace(self, u: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B"]:
        """Return ``sum_k (1 - w_k^2) v_k`` with ``w = Q^T u``, one product: no term is negative."""
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
        # any root will do, and V diag(l)^1/2 exists where a Cholesky factor does not
        values, vectors = torch.linalg.eigh(self.matrices)
        root = vectors * values.clamp_min(0).sqrt()[..., None, :]  # [B, Z, Z]
        return torch.einsum("...kl,n...l->n...k", root, noise)  # [n, B, Z]

    def chord(self, mean: Float[Tensor, "B Z"]) -> Float[Tensor, " B"]:
        if mean.shape[1] <= FEW:
            return dense_chord(mean, self.matrices)
        square = mean.square().sum(1)
        tangent = self.tangent_trace(nn.functional.normalize(mean, dim=1)) / square
        return round_chord(tangent, mean.shape[1])

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
        Shape [B, Z] of the embeddings.
    compute : function without arguments
        Function that returns the covariance. Any thread may call it, more than once if several read
        it at once.

    Examples
    --------
    >>> from laplace_metric.distributions import DiagonalCovariance, Gaussian
    >>> from laplace_metric.distributions._covariance import PendingCovariance
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
