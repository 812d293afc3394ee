"""``x -> x M + c``, as fast as a product is.

Products of [n, 1281] take a third longer than those of [n, 1296] on the CPUs that were measured:
columns that are no multiple of 16 leave the fast kernels. So an affine map may be padded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

ALIGNED = 16
"""Numbers; of float32, as many as the widest registers hold."""


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
