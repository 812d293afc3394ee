"""The parameters of one linear layer as the augmented matrix ``[W, b]``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """A linear layer's ``(W row-major, b)`` [P] seen as the augmented matrix ``[W, b]`` [O, A].

    Parameters
    ----------
    n_outputs, n_features : int
        Shape of W.
    bias : bool
        True if there is a b, the last of ``A = n_features + bias`` columns.

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
        """Return parameters in their order as [W, b]."""
        size = self.n_outputs * self.n_features
        weight = vector[..., :size].unflatten(-1, (self.n_outputs, self.n_features))
        if not self.bias:
            return weight
        return torch.cat([weight, vector[..., size:, None]], dim=-1)

    def flatten(self, matrix: Num[Tensor, "*n O A"]) -> Num[Tensor, "*n P"]:
        """Return [W, b] as parameters in their order; undoes ``fold``."""
        weight = matrix[..., : self.n_features].flatten(-2)
        if not self.bias:
            return weight
        return torch.cat([weight, matrix[..., self.n_features]], dim=-1)

    def augment(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B A"]:
        """Return [h, 1] if there is a bias, else h."""
        if not self.bias:
            return features
        return torch.cat([features, features.new_ones(*features.shape[:-1], 1)], dim=-1)
