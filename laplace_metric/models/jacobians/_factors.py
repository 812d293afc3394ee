"""Quadratic forms of many symmetric matrices in the columns of one weight.

``M_i = dz_i/ds_i`` [Z, O], from the output s of a linear layer inside a head to the head's z.

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
from torch import Tensor

SLAB_ROWS = 16
"""Rows of B that ``columnwise`` takes at once."""


def columnwise(blocks: Tensor, weight: Tensor) -> Tensor:
    """``w_o^T B_i w_o`` [n, O] for symmetric B [n, Z, Z] and the columns of one W [Z, O].

    ``sum_yz B_yz (W_yo W_zo)`` is a matrix product [n, Z^2] x [Z^2, O], and B's symmetry leaves
    its upper half: half the work of ``B_i W`` for every i, and no array [n, Z, O].

    Examples
    --------
    >>> columnwise(2 * torch.eye(3)[None], torch.ones(3, 2))
    tensor([[6., 6.]])
    """
    size = (len(blocks), weight.shape[1])
    total = torch.zeros(size, dtype=blocks.dtype, device=blocks.device)
    for start in range(0, len(weight), SLAB_ROWS):
        stop = min(start + SLAB_ROWS, len(weight))
        upper = blocks[:, start:stop, start:].clone()
        upper[:, :, stop - start :] *= 2  # stands for the entries below the slab as well
        products = weight[start:stop, None] * weight[None, start:]  # [s, Z - start, O]
        total.addmm_(upper.flatten(1), products.flatten(0, 1).to(upper))
    return total


ALL = slice(None)


class Factor(ABC):
    """M_i of n points."""

    @abstractmethod
    def vjp(self, v: Tensor) -> Tensor:
        """``M_i^T v_i`` [n, O] for v [n, K]."""

    @abstractmethod
    def after(self, v: Tensor) -> Tensor:
        """``V_i M_i`` [n, R, O] for V [n, R, Z]."""

    @abstractmethod
    def gram_diagonal(self) -> Tensor:
        """diag(M_i^T M_i), broadcastable to [n, O]."""

    @abstractmethod
    def gram_sum(self, weights: Tensor, n_rows: int) -> Tensor:
        """``sum_i q_i M_i^T M_i`` [O, O] for q [n]."""

    @abstractmethod
    def gram_inner(self, matrix: Tensor) -> Tensor:
        """``<M_i^T M_i, S>`` broadcastable to [n], for S [O, O]."""

    @abstractmethod
    def quadratic(self, blocks: Tensor) -> Tensor:
        """``diag(M_i^T B_i M_i)`` [n, O] for symmetric B [n, Z, Z]."""

    @abstractmethod
    def dense(self, n_outputs: int) -> Tensor:
        """M [n or 1, Z, O]; only the identity needs to be told Z."""

    @abstractmethod
    def rotated(self, basis: Tensor) -> Factor:
        """M Q for an orthogonal Q [O, O]."""

    def projected(self, u: Tensor, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        """``(I - u_i u_i^T) M_i`` [n, s, o], a part of it, up to a rotation from the left."""
        wide = u.expand(-1, self.dense(0).shape[1])
        along = wide[:, rows, None] * self.vjp(u)[:, None, columns]
        return self.dense(0)[:, rows, columns] - along


@dataclass(frozen=True)
class OrthogonalFactor(Factor):
    """``M = Q``, orthogonal and the same for all points; None is the identity."""

    basis: Tensor | None = None

    def vjp(self, v: Tensor) -> Tensor:
        return v if self.basis is None or v.shape[1] == 1 else v @ self.basis

    def after(self, v: Tensor) -> Tensor:
        return v if self.basis is None else v @ self.basis

    def gram_diagonal(self) -> Tensor:
        return torch.ones(())

    def gram_sum(self, weights: Tensor, n_rows: int) -> Tensor:
        return weights.sum() * torch.eye(n_rows, dtype=weights.dtype, device=weights.device)

    def gram_inner(self, matrix: Tensor) -> Tensor:
        return matrix.trace()

    def quadratic(self, blocks: Tensor) -> Tensor:
        if self.basis is None:
            return blocks.diagonal(dim1=1, dim2=2)
        return columnwise(blocks, self.basis)

    def dense(self, n_outputs: int) -> Tensor:
        return (torch.eye(n_outputs) if self.basis is None else self.basis)[None]

    def rotated(self, basis: Tensor) -> Factor:
        return OrthogonalFactor(basis if self.basis is None else self.basis @ basis)

    def projected(self, u: Tensor, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        """``Q^T (I - u u^T) Q``: rotated from the left as well, so it is symmetric."""
        w = self.vjp(u)
        identity = torch.eye(w.shape[1], dtype=w.dtype, device=w.device)
        return identity[rows, columns] - w[:, rows, None] * w[:, None, columns]


@dataclass(frozen=True)
class GatedFactor(Factor):
    """``M_i = W diag(g_i)``: W [Z, O] of the last layer, g [n, O]."""

    weight: Tensor
    gate: Tensor

    def vjp(self, v: Tensor) -> Tensor:
        return (v.expand(-1, len(self.weight)) @ self.weight) * self.gate

    def after(self, v: Tensor) -> Tensor:
        return (v @ self.weight) * self.gate[:, None, :]

    def gram_diagonal(self) -> Tensor:
        return self.gate.square() * self.weight.square().sum(0)

    def gram_sum(self, weights: Tensor, n_rows: int) -> Tensor:
        return (self.weight.mT @ self.weight) * (self.gate.mT @ (weights[:, None] * self.gate))

    def gram_inner(self, matrix: Tensor) -> Tensor:
        return ((self.gate @ (matrix * (self.weight.mT @ self.weight))) * self.gate).sum(1)

    def quadratic(self, blocks: Tensor) -> Tensor:
        return columnwise(blocks, self.weight) * self.gate.square()

    def dense(self, n_outputs: int) -> Tensor:
        return self.weight * self.gate[:, None, :]

    def rotated(self, basis: Tensor) -> Factor:
        return DenseFactor(self.dense(0) @ basis)


@dataclass(frozen=True)
class DenseFactor(Factor):
    """M [n, Z, O] itself."""

    values: Tensor

    def vjp(self, v: Tensor) -> Tensor:
        wide = v.expand(-1, self.values.shape[1])
        return (wide[:, None, :] @ self.values)[:, 0]

    def after(self, v: Tensor) -> Tensor:
        return v @ self.values

    def gram_diagonal(self) -> Tensor:
        return self.values.square().sum(1)

    def gram_sum(self, weights: Tensor, n_rows: int) -> Tensor:
        flat = self.values.flatten(0, 1)
        return flat.mT @ (weights[:, None, None] * self.values).flatten(0, 1)

    def gram_inner(self, matrix: Tensor) -> Tensor:
        return ((self.values @ matrix) * self.values).sum((1, 2))

    def quadratic(self, blocks: Tensor) -> Tensor:
        return ((blocks @ self.values) * self.values).sum(1)

    def dense(self, n_outputs: int) -> Tensor:
        return self.values

    def rotated(self, basis: Tensor) -> Factor:
        return DenseFactor(self.values @ basis)
