"""Eigenbases Q of the curvature: the identity, a Kronecker product a layer, or a dense matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.heads._layout import Layout


class Eigenbasis(ABC):
    """Q [P, P] with orthonormal columns, never written out unless it is dense."""

    @abstractmethod
    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        """Return coordinates ``c = Q^T v``."""

    @abstractmethod
    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        """Return vectors ``v = Q c``."""

    @abstractmethod
    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        """Return ``diag(Q diag(values) Q^T)``."""

    @abstractmethod
    def to(self, like: Tensor) -> Eigenbasis:
        """Return Q in the dtype and on the device of ``like``."""


@final
@dataclass(frozen=True)
class IdentityEigenbasis(Eigenbasis):
    """Q = I: the diagonal structure."""

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return vectors

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return coordinates

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return values

    def to(self, like: Tensor) -> IdentityEigenbasis:
        return self


@final
@dataclass(frozen=True)
class DenseEigenbasis(Eigenbasis):
    """Q itself [P, P]: the full structure."""

    vectors: Tensor

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return vectors @ self.vectors.to(vectors)

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return coordinates @ self.vectors.to(coordinates).mT

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return self.vectors.to(values).square() @ values

    def to(self, like: Tensor) -> DenseEigenbasis:
        return DenseEigenbasis(self.vectors.to(like))


@dataclass(frozen=True)
class KroneckerEigenblock:
    """``Q_S (x) Q_A`` of one linear layer: left [O, O] over outputs, right [A, A] over inputs."""

    left: Tensor
    right: Tensor
    layout: Layout

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        left, right = self._like(vectors)
        return (left.mT @ self.layout.fold(vectors) @ right).flatten(-2)

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        left, right = self._like(coordinates)
        return self.layout.flatten(left @ self.fold(coordinates) @ right.mT)

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        left, right = self._like(values)
        return self.layout.flatten(left.square() @ self.fold(values) @ right.square().mT)

    def _like(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return both sides in the type of ``numbers``: eigenvalues are float64, Q need not be."""
        return self.left.to(numbers), self.right.to(numbers)

    def fold(self, coordinates: Tensor) -> Tensor:
        """Return coordinates [..., P] as [..., O, A]."""
        return coordinates.unflatten(-1, (len(self.left), len(self.right)))


@final
@dataclass(frozen=True)
class KroneckerEigenbasis(Eigenbasis):
    """One ``Q_S (x) Q_A`` a layer, no coupling between layers: the kron structure."""

    blocks: tuple[KroneckerEigenblock, ...]

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return self._by_layer(KroneckerEigenblock.to_eigenbasis, vectors)

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return self._by_layer(KroneckerEigenblock.from_eigenbasis, coordinates)

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return self._by_layer(KroneckerEigenblock.diagonal, values)

    def to(self, like: Tensor) -> KroneckerEigenbasis:
        moved = [replace(b, left=b.left.to(like), right=b.right.to(like)) for b in self.blocks]
        return KroneckerEigenbasis(tuple(moved))

    def _by_layer(
        self, of_block: Callable[[KroneckerEigenblock, Tensor], Tensor], values: Tensor
    ) -> Tensor:
        parts = values.split([block.layout.n_parameters for block in self.blocks], dim=-1)
        return torch.cat(list(map(of_block, self.blocks, parts)), dim=-1)
