"""The factors ``M_i = dz_i/ds_i`` [Z, O], from a layer's output s to the embedding z of its head.

Three kinds of M share one interface, so that every sum over points is a few matrix products:

    last layer          M = I                 (or I Q, seen in a rotated basis)
    before it           M = W diag(g_i)       W of the last layer, g the slope of the activation
    any earlier one     M_i                   an array [n, Z, O]

``u`` [n, K] are the points' directions; ``K = 1`` and ``u = 0`` in the raw geometry, where the last
layer needs only one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

TILE_ROWS = 16
"""Rows of B that ``columnwise`` multiplies at once."""


def columnwise(
    blocks: Float[Tensor, "n Z Z"], weight: Float[Tensor, "Z O"]
) -> Float[Tensor, "n O"]:
    """Return ``w_o^T B_i w_o`` for symmetric B_i and the columns of one W.

    ``sum_yz B_yz (W_yo W_zo)`` is a matrix product [n, Z^2] x [Z^2, O], and B's symmetry leaves
    its upper half: half the work of ``B_i W`` for every i, and no array [n, Z, O].

    Examples
    --------
    >>> columnwise(2 * torch.eye(3)[None], torch.ones(3, 2))
    tensor([[6., 6.]])
    """
    size = (len(blocks), weight.shape[1])
    total = torch.zeros(size, dtype=blocks.dtype, device=blocks.device)
    for start in range(0, len(weight), TILE_ROWS):
        stop = min(start + TILE_ROWS, len(weight))
        upper = blocks[:, start:stop, start:].clone()  # [n, s, Z - start]
        upper[:, :, stop - start :] *= 2  # stands for the entries below the tile as well
        products = weight[start:stop, None] * weight[None, start:]  # [s, Z - start, O]
        total.addmm_(upper.flatten(1), products.flatten(0, 1).to(upper))
    return total


ALL = slice(None)
"""Every row, or every column."""


class Factor(ABC):
    """The factors M_i of n points."""

    @abstractmethod
    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        """Return M of all points (m = n), or the same for all (m = 1).

        Only the identity needs ``n_outputs``: it holds no array to read Z from.
        """

    def vjp(self, v: Float[Tensor, "n K"]) -> Float[Tensor, "n O"]:
        """Return ``M_i^T v_i``."""
        m = self.dense(0)
        return (v.expand(-1, m.shape[1])[:, None, :] @ m)[:, 0]

    def after(self, v: Float[Tensor, "n R Z"]) -> Float[Tensor, "n R O"]:
        """Return ``V_i M_i``."""
        return v @ self.dense(0)

    def gram_diagonal(self) -> Float[Tensor, "*shape"]:
        """Return diag(M_i^T M_i), broadcastable to [n, O]."""
        return self.dense(0).square().sum(1)

    def gram_sum(self, weights: Float[Tensor, " n"], n_rows: int) -> Float[Tensor, "O O"]:
        """Compute ``sum_i q_i M_i^T M_i`` for weights q; ``n_rows`` is O, for the identity."""
        m = self.dense(0)
        return m.flatten(0, 1).mT @ (weights[:, None, None] * m).flatten(0, 1)

    def gram_inner(self, matrix: Float[Tensor, "O O"]) -> Float[Tensor, "*shape"]:
        """Return ``<M_i^T M_i, S>`` broadcastable to [n], for a matrix S."""
        m = self.dense(0)
        return ((m @ matrix) * m).sum((1, 2))

    def quadratic(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, "n O"]:
        """Return ``diag(M_i^T B_i M_i)`` for symmetric B_i."""
        m = self.dense(0)
        return ((blocks @ m) * m).sum(1)

    def rotated(self, basis: Float[Tensor, "O O"]) -> Factor:
        """Return M Q for an orthogonal Q."""
        return DenseFactor(self.dense(0) @ basis)

    def projected(
        self, u: Float[Tensor, "n K"], rows: slice = ALL, columns: slice = ALL
    ) -> Float[Tensor, "n s o"]:
        """Return ``(I - u_i u_i^T) M_i``, a part of it, up to a rotation from the left."""
        m = self.dense(0)
        wide = u.expand(-1, m.shape[1])  # [n, Z]
        return m[:, rows, columns] - wide[:, rows, None] * self.vjp(u)[:, None, columns]


@dataclass(frozen=True)
class DenseFactor(Factor):
    """M itself."""

    values: Float[Tensor, "n Z O"]

    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        return self.values


@dataclass(frozen=True)
class OrthogonalFactor(Factor):
    """``M = Q``, orthogonal and the same for all points; None is the identity."""

    basis: Float[Tensor, "O O"] | None = None

    def vjp(self, v: Float[Tensor, "n K"]) -> Float[Tensor, "n O"]:
        return v if self.basis is None or v.shape[1] == 1 else v @ self.basis

    def after(self, v: Float[Tensor, "n R Z"]) -> Float[Tensor, "n R O"]:
        return v if self.basis is None else v @ self.basis

    def gram_diagonal(self) -> Float[Tensor, "*shape"]:
        return torch.ones(())

    def gram_sum(self, weights: Float[Tensor, " n"], n_rows: int) -> Float[Tensor, "O O"]:
        return weights.sum() * torch.eye(n_rows, dtype=weights.dtype, device=weights.device)

    def gram_inner(self, matrix: Float[Tensor, "O O"]) -> Float[Tensor, "*shape"]:
        return matrix.trace()

    def quadratic(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, "n O"]:
        if self.basis is None:
            return blocks.diagonal(dim1=1, dim2=2)
        return columnwise(blocks, self.basis)

    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        return (torch.eye(n_outputs) if self.basis is None else self.basis)[None]

    def rotated(self, basis: Float[Tensor, "O O"]) -> Factor:
        return OrthogonalFactor(basis if self.basis is None else self.basis @ basis)

    def projected(
        self, u: Float[Tensor, "n K"], rows: slice = ALL, columns: slice = ALL
    ) -> Float[Tensor, "n s o"]:
        """Return ``Q^T (I - u u^T) Q``: rotated from the left as well, so it is symmetric."""
        w = self.vjp(u)
        identity = torch.eye(w.shape[1], dtype=w.dtype, device=w.device)
        return identity[rows, columns] - w[:, rows, None] * w[:, None, columns]


@dataclass(frozen=True)
class GatedFactor(Factor):
    """``M_i = W diag(g_i)``: W of the last layer, g the slope of the activation before it."""

    weight: Float[Tensor, "Z O"]
    gate: Float[Tensor, "n O"]

    def vjp(self, v: Float[Tensor, "n K"]) -> Float[Tensor, "n O"]:
        return (v.expand(-1, len(self.weight)) @ self.weight) * self.gate

    def after(self, v: Float[Tensor, "n R Z"]) -> Float[Tensor, "n R O"]:
        return (v @ self.weight) * self.gate[:, None, :]

    def gram_diagonal(self) -> Float[Tensor, "*shape"]:
        return self.gate.square() * self.weight.square().sum(0)

    def gram_sum(self, weights: Float[Tensor, " n"], n_rows: int) -> Float[Tensor, "O O"]:
        return (self.weight.mT @ self.weight) * (self.gate.mT @ (weights[:, None] * self.gate))

    def gram_inner(self, matrix: Float[Tensor, "O O"]) -> Float[Tensor, "*shape"]:
        return ((self.gate @ (matrix * (self.weight.mT @ self.weight))) * self.gate).sum(1)

    def quadratic(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, "n O"]:
        return columnwise(blocks, self.weight) * self.gate.square()

    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        return self.weight * self.gate[:, None, :]
