"""Orthogonal bases Q of the parameter space, one for each structure: ``H = Q diag(lambda) Q^T``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from laplace_metric.models.jacobians import Layout


class Eigenbasis(Protocol):
    """Q [P, P] with orthonormal columns, never written out unless it is dense."""

    def to_eigenbasis(self, vectors: Tensor) -> Tensor:
        """``Q^T v`` [..., P]."""

    def from_eigenbasis(self, coordinates: Tensor) -> Tensor:
        """``Q c`` [..., P]."""

    def diagonal(self, values: Tensor) -> Tensor:
        """diag(Q diag(values) Q^T) [P]."""

    def to(self, like: Tensor) -> Eigenbasis:
        """In the dtype and on the device of ``like``."""


@dataclass(frozen=True)
class IdentityEigenbasis:
    """Q = I: the diagonal structure."""

    def to_eigenbasis(self, vectors: Tensor) -> Tensor:
        return vectors

    def from_eigenbasis(self, coordinates: Tensor) -> Tensor:
        return coordinates

    def diagonal(self, values: Tensor) -> Tensor:
        return values

    def to(self, like: Tensor) -> IdentityEigenbasis:
        return self


@dataclass(frozen=True)
class DenseEigenbasis:
    """Q itself [P, P]: the full structure."""

    vectors: Tensor

    def to_eigenbasis(self, vectors: Tensor) -> Tensor:
        return vectors @ self.vectors

    def from_eigenbasis(self, coordinates: Tensor) -> Tensor:
        return coordinates @ self.vectors.mT

    def diagonal(self, values: Tensor) -> Tensor:
        return self.vectors.square() @ values

    def to(self, like: Tensor) -> DenseEigenbasis:
        return DenseEigenbasis(self.vectors.to(like))


@dataclass(frozen=True)
class KroneckerEigenblock:
    """``Q_S (x) Q_A`` of one linear layer: left [O, O] over outputs, right [A, A] over inputs."""

    left: Tensor
    right: Tensor
    layout: Layout

    def to_eigenbasis(self, vectors: Tensor) -> Tensor:
        return (self.left.mT @ self.layout.fold(vectors) @ self.right).flatten(-2)

    def from_eigenbasis(self, coordinates: Tensor) -> Tensor:
        return self.layout.flatten(self.left @ self.fold(coordinates) @ self.right.mT)

    def diagonal(self, values: Tensor) -> Tensor:
        return self.layout.flatten(self.left.square() @ self.fold(values) @ self.right.square().mT)

    def fold(self, coordinates: Tensor) -> Tensor:
        """Coordinates [..., P] as [..., O, A]."""
        return coordinates.unflatten(-1, (len(self.left), len(self.right)))


@dataclass(frozen=True)
class KroneckerEigenbasis:
    """One ``Q_S (x) Q_A`` a layer, no coupling between layers: the kron structure."""

    blocks: tuple[KroneckerEigenblock, ...]

    @property
    def sizes(self) -> list[int]:
        """Parameters of each layer."""
        return [block.layout.n_parameters for block in self.blocks]

    def to_eigenbasis(self, vectors: Tensor) -> Tensor:
        parts = vectors.split(self.sizes, dim=-1)
        return torch.cat(
            [b.to_eigenbasis(v) for b, v in zip(self.blocks, parts, strict=True)], dim=-1
        )

    def from_eigenbasis(self, coordinates: Tensor) -> Tensor:
        parts = coordinates.split(self.sizes, dim=-1)
        return torch.cat(
            [b.from_eigenbasis(c) for b, c in zip(self.blocks, parts, strict=True)], dim=-1
        )

    def diagonal(self, values: Tensor) -> Tensor:
        parts = values.split(self.sizes)
        return torch.cat([b.diagonal(v) for b, v in zip(self.blocks, parts, strict=True)])

    def to(self, like: Tensor) -> KroneckerEigenbasis:
        return KroneckerEigenbasis(
            tuple(
                KroneckerEigenblock(b.left.to(like), b.right.to(like), b.layout)
                for b in self.blocks
            )
        )
