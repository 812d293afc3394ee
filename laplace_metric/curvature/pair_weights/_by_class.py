"""PairWeights y_ij of one kind of pairs, as seen by the points of a block.

Pair targets y_ij: +1/P for a positive pair, -1/M for a negative one inside the margin, else 0.

Ordered pairs are counted, each point with itself included (Warburg et al. 2023, LAM, eqs 6-12),
so with class counts n_c: P = sum_c n_c^2 and M = N^2 - P. In a minibatch P and M are those of the
batch: the paper's y^B times its factor |D^2|/|B| is exactly that.

PairWeights of ALL pairs from class sums: never a pair list, linear in the number of points.

Every target is one of two numbers, ``y_ij = 1/P`` inside a class and ``-b`` between classes
(``b = 1/M``, or 0 where negatives do not count here), so sums over pairs are sums over classes:

    w_i = n_c/P - b (N - n_c)          m_i = s_c/P - b (s - s_c)           c the class of i

with s_c the class sum of directions and s = sum_c s_c. (From Warburg et al. 2023, LAM, eqs 12,
98-102.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from laplace_metric.curvature._geometry import Points
from laplace_metric.curvature._statistics import ClassSums


class PairWeights(Protocol):
    """``w_i = sum_j y_ij`` and ``m_i = sum_j y_ij u_j``, and pairs for cross blocks, if any."""

    def prepare(self) -> None:
        """Compute what is computed once, before any point is read."""

    def sums(self, points: Points, labels: Tensor) -> tuple[Tensor, Tensor]:
        """w [n] and m [n, K] (m [n, 0] where the geometry does not need it)."""

    def pairs(self, points: Points, labels: Tensor) -> Iterator[tuple[Points, Tensor]]:
        """(columns, Y [n, m]) of pairs that must be looked at one by one."""

    def given(self) -> list[Tensor]:
        """Tensors that the targets depend on, beside the class sums."""


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


@dataclass(frozen=True)
class ClassPairWeights:
    """Every positive pair, and every negative one if ``negatives``."""

    whole: ClassSums
    negatives: bool

    def __str__(self) -> str:
        return f"by class, negatives={self.negatives}"

    def given(self) -> list[Tensor]:
        return []

    @cached_property
    def between(self) -> float:
        """b."""
        return PairCounts.of(self.whole.counts).negative_weight if self.negatives else 0.0

    @cached_property
    def within(self) -> float:
        """1/P + b."""
        return PairCounts.of(self.whole.counts).positive_weight + self.between

    @cached_property
    def of_classes(self) -> tuple[Tensor, Tensor]:
        """w_c [C] and m_c [C, Z] float64."""
        s_c, s, b = self.whole.sums, self.whole.sums.sum(0), self.between
        weight = class_weights(self.whole.counts, negatives=self.negatives)
        return weight, (self.within - b) * s_c - b * (s - s_c)

    def prepare(self) -> None:
        _ = self.of_classes

    def sums(self, points: Points, labels: Tensor) -> tuple[Tensor, Tensor]:
        position = self.whole.position(labels)
        dtype = points.features.dtype
        weight, pull = (values.to(dtype)[position] for values in self.of_classes)
        return weight, pull

    def pairs(self, points: Points, labels: Tensor) -> Iterator[tuple[Points, Tensor]]:
        """None: their cross blocks come from class sums."""
        return iter(())
