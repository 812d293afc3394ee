"""A linear layer inside a head: its parameters as one matrix, its Jacobian as Kronecker products.

The Jacobian is ``J_i = M_i (x) a_i^T``: ``a_i`` [A] is the layer's input (with a 1 for its bias),
``M_i`` [Z, O] a ``Factor``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from laplace_metric.models.jacobians._factors import Factor

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
        return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


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
