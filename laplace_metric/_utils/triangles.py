"""Products of which a triangle is enough, in strips: ``X^T Y`` that is symmetric, and ``X R``."""

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


def times_upper(x: Float[Tensor, "n A"], upper: Float[Tensor, "A A"]) -> Float[Tensor, "n A"]:
    """``X R`` for an upper triangle R: of each strip of columns, the rows above its end.

    Examples
    --------
    >>> times_upper(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    tensor([[1., 5.]])
    """
    width = upper.shape[1]
    if width <= STRIP:
        return x @ upper
    out = x.new_empty(len(x), width)
    for start in range(0, width, STRIP):
        stop = min(start + STRIP, width)
        torch.mm(x[:, :stop], upper[:stop, start:stop], out=out[:, start:stop])
    return out


def mirrored(gram: Float[Tensor, "A A"]) -> Float[Tensor, "A A"]:
    """The symmetric matrix of which this is the upper triangle.

    Examples
    --------
    >>> mirrored(torch.tensor([[1.0, 2.0], [9.0, 3.0]]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    return gram.triu() + gram.triu(1).mT
