"""Products with upper triangular matrices."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

STRIP = 256
"""Columns of a triangle that are multiplied at once."""


def times_upper(x: Float[Tensor, "n A"], upper: Float[Tensor, "A A"]) -> Float[Tensor, "n A"]:
    """Return ``X R`` for an upper triangle R, strip by strip, without the zeros below each strip.

    Examples
    --------
    >>> import torch
    >>> times_upper(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    tensor([[1., 5.]])
    """
    width = upper.shape[1]
    if width <= STRIP:
        return x @ upper
    out = x.new_empty(len(x), width)
    for start in range(0, width, STRIP):
        stop = min(start + STRIP, width)
        out[:, start:stop] = x[:, :stop] @ upper[:stop, start:stop]  # gradients may pass
    return out
