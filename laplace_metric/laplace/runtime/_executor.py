"""Where a fit runs: its shard of the points, the ranks it works with, its checkpoint if any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch
from tqdm.auto import tqdm

from laplace_metric.curvature import ContrastiveLoss, Statistics
from laplace_metric.curvature.pair_weights import column_groups
from laplace_metric.curvature.passes import Pass
from laplace_metric.laplace.runtime._checkpoint import Checkpoint
from laplace_metric.laplace.runtime._group import ProcessGroup
from laplace_metric.models.features import FeatureSource, FeatureStore

Both = tuple[torch.Tensor, torch.Tensor]
Draw = Callable[[], list[torch.Tensor]]


@dataclass(frozen=True)
class PassExecutor:
    """Collects the statistics of one pass after the other.

    Parameters
    ----------
    source : FeatureSource
        The points of this rank.
    ranks : Ranks
    checkpoint : Checkpoint or None
    progress : bool
        Whether passes that take longer than a few seconds show a bar.
    """

    source: FeatureSource
    ranks: ProcessGroup = field(default_factory=ProcessGroup)
    checkpoint: Checkpoint | None = None
    progress: bool = False
    _numbers: Any = field(default_factory=count)

    def collect(self, task: Pass) -> Statistics:
        """The statistics of all points of all ranks: kept ones, or those of a reading."""
        number = next(self._numbers)
        self.ranks.share(task.shared())
        kept = self.ranks.attempt(lambda: self._kept(number, task))
        if all(self.ranks.gather(kept is not None)):
            assert kept is not None
            return kept
        mine = self.ranks.attempt(lambda: self._read(number, task))
        whole = self.ranks.merged(mine, task.classes)
        return self.ranks.attempt(lambda: self._finish(number, task, whole))

    def _finish(self, number: int, task: Pass, whole: Statistics) -> Statistics:
        done = task.finish(whole)
        if self.checkpoint is not None:
            self.checkpoint.keep(number, done)
        return done

    def _kept(self, number: int, task: Pass) -> Statistics | None:
        found = None if self.checkpoint is None else self.checkpoint.finished(number, task)
        return None if found is None else found.to(self.source.device)

    def _read(self, number: int, task: Pass) -> Statistics:
        begun = None if self.checkpoint is None else self.checkpoint.begun(number, task)
        so_far = None if begun is None else begun.to(self.source.device)
        n = len(self.source)
        with tqdm(total=n, desc=f"Pass {number + 1}", delay=2, disable=not self.progress) as bar:

            def watch(stop: int, statistics: Statistics) -> None:
                bar.update(stop - bar.n)
                if self.checkpoint is not None:
                    self.checkpoint.note(number, task, statistics)

            alone = self.ranks.n == 1 and self.checkpoint is None
            read = task.read if alone else task.collect  # which names, and so hashes, the task
            return read(self.source, so_far, watch)

    @property
    def n_points(self) -> int:
        """Of all ranks."""
        return sum(self.ranks.gather(len(self.source)))

    def columns(
        self,
        loss: ContrastiveLoss,
        structure: str,
        reference: int | None,
        generator: torch.Generator | None,
    ) -> list[FeatureSource]:
        """The columns of a finite margin: points of all ranks, held by each."""
        if not loss.negatives_by_pair:
            return []
        if reference is None and self.ranks.n == 1:
            return [self.source]
        sizes = self.ranks.gather(len(self.source))
        draw = partial(_groups, sum(sizes), structure, reference, generator)
        mine = self.ranks.attempt(draw if self.checkpoint is None else self._drawn_once(draw))
        first = sum(sizes[: self.ranks.index])
        return [self._gathered(group - first) for group in self.ranks.gather(mine)[0]]

    def _drawn_once(self, draw: Draw) -> Draw:
        assert self.checkpoint is not None
        return partial(self.checkpoint.columns, draw)

    def _gathered(self, index: torch.Tensor) -> FeatureStore:
        """The points at ``index``, counted from this rank's first, that are on any rank."""
        mine = self.ranks.attempt(lambda: self._mine(index))
        parts = [part for part in self.ranks.gather(mine) if part is not None]
        return self.ranks.attempt(lambda: self._joined(parts))

    def _mine(self, index: torch.Tensor) -> Both | None:
        here = index[(index >= 0) & (index < len(self.source))]
        if not len(here):
            return None
        return self.source.rows(here).cpu(), self.source.labels.cpu()[here]

    def _joined(self, parts: list[Both]) -> FeatureStore:
        features, labels = (torch.cat(side) for side in zip(*parts, strict=True))
        return FeatureStore.of(features.to(self.source.device), labels.to(self.source.device))


def _groups(
    n: int, structure: str, reference: int | None, generator: torch.Generator | None
) -> list[torch.Tensor]:
    if reference is None:
        return [torch.arange(n)]
    return column_groups(n, structure, reference, generator)
