"""Where the parameters of a linear layer stand: one matrix [W, b] or a part of the vector theta."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
