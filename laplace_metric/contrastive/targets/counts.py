"""Pair targets y_ij: +1/P for a positive pair, -1/M for a negative one inside the margin, else 0.

Ordered pairs are counted, each point with itself included (Warburg et al. 2023, LAM, eqs 6-12),
so with class counts n_c: P = sum_c n_c^2 and M = N^2 - P. In a minibatch P and M are those of the
batch: the paper's y^B times its factor |D^2|/|B| is exactly that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PairCounts:
    """Numbers of ordered positive (P) and negative (M) pairs."""

    positive: int
    negative: int

    @classmethod
    def of(cls, class_counts: Tensor) -> PairCounts:
        """From the class counts n_c [C].

        Examples
        --------
        >>> PairCounts.of(torch.tensor([2, 1]))
        PairCounts(positive=5, negative=4)
        """
        counts = class_counts.tolist()
        positive = sum(n * n for n in counts)
        return cls(positive, sum(counts) ** 2 - positive)

    @property
    def positive_weight(self) -> float:
        """1/P, 0 without positive pairs."""
        return 1 / self.positive if self.positive else 0.0

    @property
    def negative_weight(self) -> float:
        """1/M, 0 without negative pairs (their sum is empty)."""
        return 1 / self.negative if self.negative else 0.0


def class_weights(class_counts: Tensor, *, negatives: bool) -> Tensor:
    """``w_c = sum_j y_ij = n_c/P - (N - n_c)/M`` [C] float64; ``n_c/P`` without negatives.

    The numerator is an integer difference, so w_c is exactly 0 for balanced classes.

    Examples
    --------
    >>> class_weights(torch.tensor([5, 5, 5]), negatives=True)
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    counts: list[int] = class_counts.tolist()
    n, pairs = sum(counts), PairCounts.of(class_counts)
    p, m = pairs.positive, pairs.negative
    if negatives and m:
        values = [(c * m - (n - c) * p) / (p * m) for c in counts]
    else:
        values = [c / p for c in counts]
    return torch.tensor(values, dtype=torch.float64, device=class_counts.device)
