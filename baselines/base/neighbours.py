"""Training vectors that are kept, and the nearest of them."""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric._utils.validation import check_real
from laplace_metric.errors import InputError

BLOCK = 65_536
"""Training vectors that are compared at once."""


def unit_rows(x: Tensor) -> Tensor:
    """Return ``x / |x|`` of rows [..., Z] of any length; a row of zeros has no direction and stays.

    Examples
    --------
    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000],
            [1.0000, 0.0000]])
    """
    largest = x.abs().amax(-1, keepdim=True)
    x = x / torch.where(largest == 0, 1, largest)  # squares neither overflow nor vanish
    length = x.norm(dim=-1, keepdim=True)
    return x / torch.where(length == 0, 1, length)


def most_similar(
    x: Tensor, memory: Tensor, k: int, offset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the k largest ``s_bn = x_b . m_n + o_n`` of each row, in order, and their numbers n.

    Unit vectors make s a cosine; ``o = -|m|^2 / 2`` makes the largest s the smallest distance.

    Parameters
    ----------
    x : Tensor [B, Z]
        Vectors whose neighbours are searched.
    memory : Tensor [N, Z]
        Vectors m that are searched.
    k : int
        Number of neighbours of each row, from 1 to N.
    offset : Tensor [N] or None
        Offset o of each vector of the memory. None, the default: 0.

    Returns
    -------
    (Tensor [B, k], Tensor [B, k])

    Examples
    --------
    >>> most_similar(torch.tensor([[1.0, 0.5]]), torch.eye(2), 2)
    (tensor([[1.0000, 0.5000]]), tensor([[0, 1]]))
    """
    best, index = x.new_empty(len(x), 0), memory.new_empty(len(x), 0, dtype=torch.long)
    for start in range(0, len(memory), BLOCK):
        similarity = x @ memory[start : start + BLOCK].T
        if offset is not None:
            similarity = similarity + offset[start : start + BLOCK]
        numbers = torch.arange(similarity.shape[1], device=x.device) + start
        best = torch.cat([best, similarity], dim=1)
        index = torch.cat([index, numbers.expand(len(x), -1)], dim=1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        index = index.gather(1, order)
    return best, index


def check_fraction(value: float) -> float:
    """Return the share of the training set that is kept.

    Raises
    ------
    InputError
        Unless it is a number in (0, 1].
    """
    if not 0 < check_real("fraction", value) <= 1:
        raise InputError(f"fraction={value!r}: pass a number in (0, 1].")
    return float(value)


def kept_rows(n: int, k: int, fraction: float, generator: torch.Generator | None) -> Tensor:
    """Return the rows kept of n training vectors, in order; without a generator, one draw.

    Raises
    ------
    InputError
        If fewer than k are kept.

    Examples
    --------
    >>> kept_rows(4, 3, 1.0, None), len(kept_rows(100, 3, 0.25, None))
    (tensor([0, 1, 2, 3]), 25)
    """
    n_kept = max(1, round(fraction * n))
    if k > n_kept:
        raise InputError(
            f"k={k}, but only {n_kept} of {n} training vectors are kept: pass a smaller "
            "k, a larger fraction or more data."
        )
    if n_kept == n:
        return torch.arange(n)
    generator = generator or torch.Generator().manual_seed(0)
    return torch.randperm(n, generator=generator)[:n_kept].sort().values
