"""Affine maps without a column of ones, padded to the widths that matrix products are fast at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

ALIGNED = 16
"""Fast kernels of CPUs want a multiple of it: [n, 1281] takes a third longer than [n, 1296]."""


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
        """Read ``[M; c]`` [A, K], which has the row c if A > n_features.

        ``padded`` appends columns of zeros up to a multiple of ``ALIGNED``.
        """
        if padded:
            matrix = pad(matrix)
        offset = matrix[n_features].contiguous() if len(matrix) > n_features else None
        return cls(matrix[:n_features].contiguous(), offset)

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x M + c`` [n, K]."""
        return x @ self.matrix if self.offset is None else torch.addmm(self.offset, x, self.matrix)


def pad(matrix: Tensor) -> Tensor:
    """Append columns of zeros up to a multiple of ``ALIGNED``."""
    return nn.functional.pad(matrix, (0, -matrix.shape[-1] % ALIGNED))
