"""Where the parameters of a linear layer stand: one matrix [W, b] or a part of the vector theta.

The Jacobian of a linear layer inside a head: ``J_i = M_i (x) a_i^T``.

``a_i`` [A] is the layer's input (with a 1 for its bias), ``M_i`` [Z, O] a ``Factor``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.models.jacobians._factors import Factor


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

    def fold(self, vector: Tensor) -> Tensor:
        """[..., P] in parameter order -> [..., O, A]."""
        size = self.n_outputs * self.n_features
        weight = vector[..., :size].unflatten(-1, (self.n_outputs, self.n_features))
        if not self.bias:
            return weight
        return torch.cat([weight, vector[..., size:, None]], dim=-1)

    def flatten(self, matrix: Tensor) -> Tensor:
        """[..., O, A] -> [..., P] in parameter order; undoes ``fold``."""
        weight = matrix[..., : self.n_features].flatten(-2)
        if not self.bias:
            return weight
        return torch.cat([weight, matrix[..., self.n_features]], dim=-1)

    def augment(self, features: Tensor) -> Tensor:
        """h [B, D] -> [h, 1] [B, A]."""
        if not self.bias:
            return features
        return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


@dataclass(frozen=True)
class Layer:
    """``J_i = M_i (x) a_i^T`` for n points: ``inputs`` a [n, A], ``factor`` M, and its layout."""

    inputs: Tensor
    factor: Factor
    layout: Layout

    def divided(self, lengths: Tensor) -> Layer:
        """``J_i / r_i`` for r [n, 1]."""
        return Layer(self.inputs / lengths, self.factor, self.layout)

    def rotated(self, left: Tensor, right: Tensor) -> Layer:
        """``J_i (Q_S (x) Q_A)``."""
        return Layer(self.inputs @ right, self.factor.rotated(left), self.layout)

    def vjp(self, cotangents: Tensor) -> Tensor:
        """``sum_i V_i J_i`` [R, P] for V [n, R, Z]: one product [R O, n] x [n, A]."""
        rows = self.factor.after(cotangents)  # [n, R, O]
        return self.layout.flatten((rows.flatten(1).mT @ self.inputs).unflatten(0, rows.shape[1:]))

    def diagonal(self, blocks: Tensor) -> Tensor:
        """``diag(sum_i J_i^T B_i J_i)`` [P], symmetric B [n, Z, Z]: one product [O, n] x [n, A]."""
        rows = self.factor.quadratic(blocks)
        return self.layout.flatten(rows.mT @ self.inputs.square())

    def jacobian(self, n_outputs: int) -> Tensor:
        """J [n, Z, P], materialised, columns in parameter order."""
        m = self.factor.dense(n_outputs).to(self.inputs)
        return self.layout.flatten(m[..., None] * self.inputs[:, None, None, :])
