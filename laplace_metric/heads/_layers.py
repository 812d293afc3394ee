"""A linear layer inside a head: its parameters as one matrix, its Jacobian as Kronecker products.

The Jacobian is ``J_i = M_i (x) a_i^T``: ``a_i`` [A] is the layer's input (with a 1 for its bias),
``M_i`` [Z, O] a ``Factor``.

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
from jaxtyping import Float, Num
from torch import Tensor, nn

ALIGNED = 16
"""CPUs' fast kernels want a multiple: [n, 1281] takes a third longer than [n, 1296]."""


@dataclass(frozen=True)
class Layout:
    """A linear layer's ``(W row-major, b)`` [P] seen as the augmented matrix ``[W, b]`` [O, A].

    Parameters
    ----------
    n_outputs, n_features : int
        Shape of W.
    bias : bool
        Whether there is a b, the last of ``A = n_features + bias`` columns.

    Examples
    --------
    >>> Layout(2, 1, bias=True).fold(torch.arange(4))  # w1, w2, b1, b2
    tensor([[0, 2],
            [1, 3]])
    """

    n_outputs: int
    n_features: int
    bias: bool

    @property
    def n_columns(self) -> int:
        """A."""
        return self.n_features + int(self.bias)

    @property
    def n_parameters(self) -> int:
        """P = O A."""
        return self.n_outputs * self.n_columns

    def fold(self, vector: Num[Tensor, "*n P"]) -> Num[Tensor, "*n O A"]:
        """Parameters in their order as [W, b]."""
        size = self.n_outputs * self.n_features
        weight = vector[..., :size].unflatten(-1, (self.n_outputs, self.n_features))
        if not self.bias:
            return weight
        return torch.cat([weight, vector[..., size:, None]], dim=-1)

    def flatten(self, matrix: Num[Tensor, "*n O A"]) -> Num[Tensor, "*n P"]:
        """[W, b] as parameters in their order; undoes ``fold``."""
        weight = matrix[..., : self.n_features].flatten(-2)
        if not self.bias:
            return weight
        return torch.cat([weight, matrix[..., self.n_features]], dim=-1)

    def augment(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B A"]:
        """[h, 1] if there is a bias, else h."""
        if not self.bias:
            return features
        return torch.cat([features, features.new_ones(features.shape[0], 1)], dim=1)


@dataclass(frozen=True)
class Layer:
    """``J_i = M_i (x) a_i^T`` for n points: ``inputs`` a [n, A], ``factor`` M, and its layout."""

    inputs: Float[Tensor, "n A"]
    factor: Factor
    layout: Layout

    def divided(self, lengths: Float[Tensor, "n 1"]) -> Layer:
        """``J_i / r_i`` for lengths r."""
        return Layer(self.inputs / lengths, self.factor, self.layout)

    def rotated(self, left: Float[Tensor, "O O"], right: Float[Tensor, "A A"]) -> Layer:
        """``J_i (Q_S (x) Q_A)`` for Q_S left and Q_A right."""
        return Layer(self.inputs @ right, self.factor.rotated(left), self.layout)

    def vjp(self, cotangents: Float[Tensor, "n R Z"]) -> Float[Tensor, "R P"]:
        """``sum_i V_i J_i``: one product [R O, n] x [n, A]."""
        rows = self.factor.after(cotangents)  # [n, R, O]
        matrices = (rows.flatten(1).mT @ self.inputs).unflatten(0, rows.shape[1:])  # [R, O, A]
        return self.layout.flatten(matrices)

    def diagonal(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, " P"]:
        """``diag(sum_i J_i^T B_i J_i)`` for symmetric B: one product [O, n] x [n, A]."""
        rows = self.factor.quadratic(blocks)  # [n, O]
        return self.layout.flatten(rows.mT @ self.inputs.square())

    def jacobian(self, n_outputs: int) -> Float[Tensor, "n Z P"]:
        """J, materialised, columns in parameter order."""
        m = self.factor.dense(n_outputs).to(self.inputs)
        return self.layout.flatten(m[..., None] * self.inputs[:, None, None, :])  # [n, Z, O, A]


@dataclass(frozen=True)
class Affine:
    """``x -> x M + c`` [n, K], so that no column of ones is joined to x for a bias.

    Examples
    --------
    >>> m = torch.tensor([[2.0], [1.0]])  # [M; c]
    >>> Affine.of(m, 1)(torch.tensor([[3.0]]))
    tensor([[7.]])
    >>> Affine.of(m, 1, padded=True)(torch.tensor([[3.0]])).shape
    torch.Size([1, 16])
    """

    matrix: Tensor
    offset: Tensor | None

    @classmethod
    def of(cls, matrix: Tensor, n_features: int, *, padded: bool = False) -> Affine:
        """From ``[M; c]`` [A, K], whose last row is there if A > n_features.

        ``padded``: columns of zeros up to a multiple of 16.
        """
        if padded:
            matrix = pad(matrix)
        offset = matrix[n_features].contiguous() if len(matrix) > n_features else None
        return cls(matrix[:n_features].contiguous(), offset)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, K]."""
        return x @ self.matrix if self.offset is None else torch.addmm(self.offset, x, self.matrix)

    def into(self, x: Tensor, buffer: Tensor) -> Tensor:
        """Written to the first n rows of ``buffer``."""
        out = buffer[: len(x)]
        if self.offset is None:
            return torch.mm(x, self.matrix, out=out)
        return torch.addmm(self.offset, x, self.matrix, out=out)


def pad(matrix: Tensor) -> Tensor:
    """Columns of zeros up to a multiple of 16."""
    return nn.functional.pad(matrix, (0, -matrix.shape[-1] % ALIGNED))


TILE_ROWS = 16
"""Rows of B that ``columnwise`` takes at once."""


def columnwise(
    blocks: Float[Tensor, "n Z Z"], weight: Float[Tensor, "Z O"]
) -> Float[Tensor, "n O"]:
    """``w_o^T B_i w_o`` for symmetric B_i and the columns of one W.

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
    """M_i of n points."""

    @abstractmethod
    def vjp(self, v: Float[Tensor, "n K"]) -> Float[Tensor, "n O"]:
        """``M_i^T v_i``."""

    @abstractmethod
    def after(self, v: Float[Tensor, "n R Z"]) -> Float[Tensor, "n R O"]:
        """``V_i M_i``."""

    @abstractmethod
    def gram_diagonal(self) -> Float[Tensor, "*shape"]:
        """diag(M_i^T M_i), broadcastable to [n, O]."""

    @abstractmethod
    def gram_sum(self, weights: Float[Tensor, " n"], n_rows: int) -> Float[Tensor, "O O"]:
        """``sum_i q_i M_i^T M_i`` for weights q; the identity is told O by ``n_rows``."""

    @abstractmethod
    def gram_inner(self, matrix: Float[Tensor, "O O"]) -> Float[Tensor, "*shape"]:
        """``<M_i^T M_i, S>`` broadcastable to [n], for a matrix S."""

    @abstractmethod
    def quadratic(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, "n O"]:
        """``diag(M_i^T B_i M_i)`` for symmetric B_i."""

    @abstractmethod
    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        """M of all points (m = n), or the same for all (m = 1); only the identity is told Z."""

    @abstractmethod
    def rotated(self, basis: Float[Tensor, "O O"]) -> Factor:
        """M Q for an orthogonal Q."""

    def projected(
        self, u: Float[Tensor, "n K"], rows: slice = ALL, columns: slice = ALL
    ) -> Float[Tensor, "n s o"]:
        """``(I - u_i u_i^T) M_i``, a part of it, up to a rotation from the left."""
        wide = u.expand(-1, self.dense(0).shape[1])  # [n, Z]
        along = wide[:, rows, None] * self.vjp(u)[:, None, columns]  # [n, s, o]
        return self.dense(0)[:, rows, columns] - along


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
        """``Q^T (I - u u^T) Q``: rotated from the left as well, so it is symmetric."""
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

    def rotated(self, basis: Float[Tensor, "O O"]) -> Factor:
        return DenseFactor(self.dense(0) @ basis)


@dataclass(frozen=True)
class DenseFactor(Factor):
    """M itself."""

    values: Float[Tensor, "n Z O"]

    def vjp(self, v: Float[Tensor, "n K"]) -> Float[Tensor, "n O"]:
        wide = v.expand(-1, self.values.shape[1])  # [n, Z]
        return (wide[:, None, :] @ self.values)[:, 0]

    def after(self, v: Float[Tensor, "n R Z"]) -> Float[Tensor, "n R O"]:
        return v @ self.values

    def gram_diagonal(self) -> Float[Tensor, "*shape"]:
        return self.values.square().sum(1)

    def gram_sum(self, weights: Float[Tensor, " n"], n_rows: int) -> Float[Tensor, "O O"]:
        flat = self.values.flatten(0, 1)  # [n Z, O]
        return flat.mT @ (weights[:, None, None] * self.values).flatten(0, 1)

    def gram_inner(self, matrix: Float[Tensor, "O O"]) -> Float[Tensor, "*shape"]:
        return ((self.values @ matrix) * self.values).sum((1, 2))

    def quadratic(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, "n O"]:
        return ((blocks @ self.values) * self.values).sum(1)

    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        return self.values

    def rotated(self, basis: Float[Tensor, "O O"]) -> Factor:
        return DenseFactor(self.values @ basis)
