"""Endless random batches, a round at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.tasks.task import Part

BATCH = 128
BATCHES = 20
"""Batches of a round; more where classes are so many that not all would be shown."""


class Schedule:
    """Every time it is gone through: other random inputs, in batches of 128.

    With ``per_class`` a batch has so many inputs of each of its classes (fewer where a class has
    fewer) and a round shows every class, else rows are drawn without looking. Soft labels are drawn
    anew for every batch, so that two inputs are positive with probability ``p . p'``.
    """

    def __init__(self, part: Part, seed: int, per_class: int | None = None) -> None:
        self.part, self.per_class = part, per_class
        self.generator = torch.Generator().manual_seed(seed)
        self.order = part.labels.argsort(stable=True)
        self.counts = part.labels.unique(return_counts=True)[1]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in self._rows():
            yield self.part.read(rows), self._labels(rows)

    def __len__(self) -> int:
        if self.per_class is None:
            return BATCHES
        return max(BATCHES, -(-len(self.counts) // (BATCH // self.per_class)))

    def _rows(self) -> Iterator[Tensor]:
        if self.per_class is None:
            n = len(self.part)
            drawn = torch.randperm(n, generator=self.generator).repeat(-(-BATCH * BATCHES // n))
            yield from drawn[: BATCH * BATCHES].split(BATCH)
            return
        n, m = len(self.counts), self.per_class
        turns = -(-len(self) * (BATCH // m) // n)
        order = torch.cat([torch.randperm(n, generator=self.generator) for _ in range(turns)])
        for classes in order.split(BATCH // m)[: len(self)]:
            yield self._of_classes(classes.unique(), m)

    def _of_classes(self, classes: Tensor, m: int) -> Tensor:
        """m different rows of each class."""
        starts = self.counts.cumsum(0) - self.counts
        rows = [self._of_class(int(starts[c]), int(self.counts[c]), m) for c in classes]
        return torch.cat(rows)

    def _of_class(self, start: int, count: int, m: int) -> Tensor:
        return self.order[start + torch.randperm(count, generator=self.generator)[:m]]

    def _labels(self, rows: Tensor) -> Tensor:
        if self.part.soft is None:
            return self.part.labels[rows]
        return torch.multinomial(self.part.soft[rows], 1, generator=self.generator).flatten()
