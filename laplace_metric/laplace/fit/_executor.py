"""Execution of a schedule of passes over the points of all processes of a fit.

Every process reads its own points; merged statistics are audited, finished and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count

import torch
from torch import Tensor

from laplace_metric._utils.progress import tqdm
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._margin_pairs import column_groups
from laplace_metric.curvature._passes import Pass, PassSchedule, next_pass
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.curvature._structures import Curvature
from laplace_metric.laplace.fit._fit_options import FitOptions
from laplace_metric.laplace.fit._fit_storage import FitStorage
from laplace_metric.laplace.fit._processes import Processes
from laplace_metric.models._feature_store import FeatureStore
from laplace_metric.models._fingerprints import FINGERPRINTS, Fingerprints, sorted_fingerprints


@dataclass(frozen=True)
class PassExecutor:
    """The points of this process, the processes it works with, and what it keeps.

    Parameters
    ----------
    source : FeatureStore
        Points of this process.
    processes : Processes
        The processes that fit together, of which this is one.
    storage : FitStorage
        Keeps finished passes.
    progress : bool
        Show a bar for passes that take longer than two seconds.
    """

    source: FeatureStore
    processes: Processes
    storage: FitStorage
    progress: bool = False

    def execute(self, schedule: PassSchedule[Curvature]) -> Curvature:
        """Run one pass after the other, each over the points of all processes."""
        finished, on_all = None, self.processes.run_on_all
        for number in count():
            task, curvature = on_all(partial(next_pass, schedule, finished))
            if task is None:
                break
            finished = self.collect(number, task)
        assert curvature is not None
        return curvature

    def collect(self, number: int, task: Pass) -> Statistics:
        """Return the finished statistics of one pass: of the checkpoint, or of a reading."""
        on_all = self.processes.run_on_all
        self.processes.share(task.shared())
        stored = on_all(lambda: self.storage.finished(number, task))
        if all(self.processes.gather(stored is not None)):
            assert stored is not None
            return stored.to(self.source.device)
        merged = self.processes.merged(on_all(lambda: self._read(number, task)), task.classes)
        return on_all(lambda: self._finish(number, task, merged))

    def _read(self, number: int, task: Pass) -> Statistics:
        # statistics name their task only where they are exchanged or kept: the name is a hash
        named = self.storage.survives or self.processes.n > 1
        read, label = task.collect if named else task.read, f"Pass {number + 1}: {task.name}"
        with tqdm(total=len(self.source), desc=label, delay=2, disable=not self.progress) as bar:
            return read(self.source, bar.update if self.progress else None)

    def _finish(self, number: int, task: Pass, merged: Statistics) -> Statistics:
        task.audit(merged)
        finished = task.finish(merged)
        self.storage.keep(number, finished)
        return finished

    @property
    def n_points(self) -> int:
        """Number of points of all processes."""
        return sum(self.processes.gather(len(self.source)))

    @property
    def fingerprints(self) -> Fingerprints | None:
        """Sorted fingerprints of the points of all processes; None for too many points."""
        if self.n_points > FINGERPRINTS:
            return None
        parts = self.processes.gather(self.processes.run_on_all(self.source.fingerprints))
        known = [part for part in parts if part is not None]
        return sorted_fingerprints(known) if known else None

    def columns(
        self, loss: ContrastiveLoss, structure: str, options: FitOptions
    ) -> list[FeatureStore]:
        """Return the columns of a finite margin: points of all processes, held by each."""
        reference, processes = options.reference, self.processes
        if not loss.negatives_by_pair:
            return []
        if reference is None and processes.n == 1:
            return [self.source]
        sizes = processes.gather(len(self.source))

        def draw() -> list[Tensor]:
            if reference is None:
                return [torch.arange(sum(sizes))]
            return column_groups(sum(sizes), structure, reference, options.seed)

        drawn = processes.run_on_all(lambda: self.storage.columns(draw))
        groups = processes.gather(drawn)[0]
        first = sum(sizes[: processes.index])
        return [self._gathered(index - first) for index in groups]

    def _gathered(self, index: Tensor) -> FeatureStore:
        """Return the points of all processes at ``index``; 0 is the first of this process."""
        on_all, source = self.processes.run_on_all, self.source

        def local() -> tuple[Tensor, Tensor] | None:
            mine = index[(index >= 0) & (index < len(source))]
            return (source.rows(mine).cpu(), source.labels.cpu()[mine]) if len(mine) else None

        def joined() -> FeatureStore:
            features, labels = map(torch.cat, zip(*parts, strict=True))
            return FeatureStore.of(features.to(source.device), labels.to(source.device))

        parts = [part for part in self.processes.gather(on_all(local)) if part is not None]
        return on_all(joined)
