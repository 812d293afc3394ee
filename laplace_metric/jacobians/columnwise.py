"""Quadratic forms of many symmetric matrices in the columns of one weight."""

from __future__ import annotations

import torch
from torch import Tensor

SLAB_ROWS = 16
"""Rows of B that ``columnwise`` takes at once."""


def columnwise(blocks: Tensor, weight: Tensor) -> Tensor:
    """``w_o^T B_i w_o`` [n, O] for symmetric B [n, Z, Z] and the columns of one W [Z, O].

    ``sum_yz B_yz (W_yo W_zo)`` is a matrix product [n, Z^2] x [Z^2, O], and B's symmetry leaves
    its upper half: half the work of ``B_i W`` for every i, and no array [n, Z, O].

    Examples
    --------
    >>> columnwise(2 * torch.eye(3)[None], torch.ones(3, 2))
    tensor([[6., 6.]])
    """
    size = (len(blocks), weight.shape[1])
    total = torch.zeros(size, dtype=blocks.dtype, device=blocks.device)
    for start in range(0, len(weight), SLAB_ROWS):
        stop = min(start + SLAB_ROWS, len(weight))
        upper = blocks[:, start:stop, start:].clone()
        upper[:, :, stop - start :] *= 2  # stands for the entries below the slab as well
        products = weight[start:stop, None] * weight[None, start:]  # [s, Z - start, O]
        total.addmm_(upper.flatten(1), products.flatten(0, 1).to(upper))
    return total
