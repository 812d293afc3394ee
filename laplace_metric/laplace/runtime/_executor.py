"""Runs a schedule of passes where the points are: on every rank, and once if there is a checkpoint.

Every rank reads its own points; merged statistics are audited, finished, and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from laplace_metric._utils.progress import tqdm
from laplace_metric.curvature import (
    ContrastiveLoss,
    Pass,
    PassSchedule,
    Statistics,
    column_groups,
    next_pass,
)
from laplace_metric.curvature.structures import Curvature
from laplace_metric.laplace._settings import FitOptions
from laplace_metric.laplace.runtime._checkpoint import Checkpoint
from laplace_metric.laplace.runtime._group import ProcessGroup
from laplace_metric.models.features import FeatureSource, FeatureStore

Draw = Callable[[], list[Tensor]]


@dataclass(frozen=True)
class PassExecutor:
    """The points of this rank, the ranks it works with, its checkpoint if any.

    Parameters
    ----------
    source : FeatureSource
    group : ProcessGroup
    checkpoint : Checkpoint or None
    progress : bool
        Whether passes that take longer than a few seconds show a bar.
    """

    source: FeatureSource
    group: ProcessGroup
    checkpoint: Checkpoint | None = None
    progress: bool = False

    def execute(self, schedule: PassSchedule[Curvature]) -> Curvature:
        """One pass after the other, each over the points of all ranks."""
        number, finished, on_all = 0, None, self.group.run_on_all_ranks
        while True:
            task, curvature = on_all(partial(next_pass, schedule, finished))
            if task is None:
                assert curvature is not None
                return curvature
            finished = self.collect(number, task)
            number += 1

    def collect(self, number: int, task: Pass) -> Statistics:
        """The finished statistics of one pass: those of the checkpoint, or of a reading."""
        on_all = self.group.run_on_all_ranks
        self.group.share(task.shared())
        stored = on_all(lambda: self._from_checkpoint(number, task))
        if all(self.group.gather(stored is not None)):
            assert stored is not None
            return stored
        merged = self.group.merged(on_all(lambda: self._read(number, task)), task.classes)
        return on_all(lambda: self._finish(number, task, merged))

    def _from_checkpoint(self, number: int, task: Pass) -> Statistics | None:
        stored = None if self.checkpoint is None else self.checkpoint.finished(number, task)
        return None if stored is None else stored.to(self.source.device)

    def _read(self, number: int, task: Pass) -> Statistics:
        label = f"Pass {number + 1}"
        with tqdm(total=len(self.source), desc=label, delay=2, disable=not self.progress) as bar:
            return task.collect(self.source, bar.update)

    def _finish(self, number: int, task: Pass, merged: Statistics) -> Statistics:
        task.audit(merged)
        finished = task.finish(merged)
        if self.checkpoint is not None:
            self.checkpoint.keep(number, finished)
        return finished

    @property
    def n_points(self) -> int:
        """Of all ranks."""
        return sum(self.group.gather(len(self.source)))

    def columns(
        self, loss: ContrastiveLoss, structure: str, options: FitOptions
    ) -> list[FeatureSource]:
        """The columns of a finite margin: points of all ranks, held by each."""
        if not loss.negatives_by_pair:
            return []
        if options.reference is None and self.group.n == 1:
            return [self.source]
        sizes = self.group.gather(len(self.source))
        draw: Draw = partial(_draw, sum(sizes), structure, options)
        if self.checkpoint is not None:
            draw = partial(self.checkpoint.columns, draw)
        groups = self.group.gather(self.group.run_on_all_ranks(draw))[0]
        first = sum(sizes[: self.group.index])
        return [self._gathered(index - first) for index in groups]

    def _gathered(self, index: Tensor) -> FeatureStore:
        """The points at ``index``, counted from this rank's first, that are on any rank."""
        mine = self.group.run_on_all_ranks(lambda: self._local(index))
        parts = [part for part in self.group.gather(mine) if part is not None]
        return self.group.run_on_all_ranks(lambda: self._joined(parts))

    def _local(self, index: Tensor) -> tuple[Tensor, Tensor] | None:
        local = index[(index >= 0) & (index < len(self.source))]
        if not len(local):
            return None
        return self.source.rows(local).cpu(), self.source.labels.cpu()[local]

    def _joined(self, parts: list[tuple[Tensor, Tensor]]) -> FeatureStore:
        features, labels = (torch.cat(side) for side in zip(*parts, strict=True))
        return FeatureStore.of(features.to(self.source.device), labels.to(self.source.device))


def _draw(n: int, structure: str, options: FitOptions) -> list[Tensor]:
    if options.reference is None:
        return [torch.arange(n)]
    return column_groups(n, structure, options.reference, options.generator)
