"""One pass over the points, how passes are run, and an audit of merged statistics.

A pass reads every point once and ends in ``Statistics``; a schedule is a fit as a row of passes.

A schedule is a generator: it yields a pass, is sent the finished statistics of all points, and
returns the curvature. Who reads the points, in how many places, and how the parts are merged is
not its business: ``execute`` reads one source in this process; ``distributed`` and ``scale``
read shards, whose merged statistics are audited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import is_not
from typing import Any, TypeVar

import torch
from torch import Tensor

from laplace_metric._utils.randomness import tqdm
from laplace_metric.curvature._loss import Geometry
from laplace_metric.curvature._statistics import ClassSums, Statistics
from laplace_metric.curvature.by_class import Points
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.io import digest
from laplace_metric.models._rows import Block, FeatureSource, Kept

ROUNDINGS = 1_000
"""Roundings a point by which its direction may differ from pass to pass."""


def probe_direction(like: Tensor) -> Tensor:
    """A fixed unit vector r of as many entries as ``like`` [n, K] has columns."""
    places = torch.arange(1, like.shape[1] + 1, dtype=torch.float64, device=like.device)
    r = places.mul_(2.4).cos_()
    return (r / r.norm()).to(like)


def check_same_directions(read: ClassSums, expected: ClassSums, eps: float) -> None:
    """Raise ``InputError`` unless ``sum_i <u_i, r>`` of each class is that of the first pass.

    Other points with the same labels are found here: another shard in the place of one, or a loader
    that yields something else.

    Raises
    ------
    InputError
    """
    gap = (read.sums[:, 0] - expected.sums @ probe_direction(expected.sums)).abs()
    off = gap > ROUNDINGS * eps * expected.counts
    if bool(off.any()):
        raise InputError(
            f"this pass read other points than the first one (of class "
            f"{int(expected.classes[off][0])}): merge the statistics of every shard once in each "
            "pass, and let the loader yield the same points each time."
        )


def check_same_points(read: ClassSums, expected: ClassSums) -> None:
    """Raise ``InputError`` unless a pass read as many points of each class as the first one.

    A shard that is left out or merged twice is found here.

    Raises
    ------
    InputError
    """
    if torch.equal(read.classes, expected.classes) and torch.equal(read.counts, expected.counts):
        return
    raise InputError(
        f"this pass read {read.n_points} points and the first one {expected.n_points}"
        f"{_difference(read, expected)}: merge the statistics of every shard once in each pass, "
        "and let the loader yield the same points each time."
    )


def _difference(read: ClassSums, expected: ClassSums) -> str:
    minus = ClassSums(expected.classes, -expected.counts, expected.sums[:, :0])
    both = ClassSums(read.classes, read.counts, read.sums[:, :0]) + minus
    index = int(both.counts.ne(0).nonzero()[0])
    return f" (of class {int(both.classes[index])} {int(both.counts[index]):+d})"


T = TypeVar("T")
Callback = Callable[[int], Any]
"""Called with the number of points of every block that was read."""


@dataclass(frozen=True)
class Pass(ABC):
    """One reading of the points."""

    head: HeadJacobian
    geometry: Geometry

    name = ""
    """What is collected, for the fingerprint."""

    @abstractmethod
    def inputs(self) -> list[Tensor]:
        """Results of earlier passes that this one depends on."""

    def shared(self) -> list[Tensor]:
        """Return the tensors that were computed, not summed, and so could differ by machine."""
        return []

    @property
    def classes(self) -> Tensor | None:
        """The classes [C] whose points are counted, where they are known before reading."""
        return None

    def settings(self) -> dict[str, Any]:
        """Plain values that this pass depends on."""
        return {}

    @cached_property
    def task(self) -> str:
        """Fingerprint: head, geometry, settings, and the results of earlier passes."""
        head = f"{self.head.signature}|{self.head.layouts}"
        described = f"{self.name}|{self.geometry}|{head}|{sorted(self.settings().items())}"
        return digest(described, [self.head.parameters, *self.head.constants, *self.inputs()])

    @abstractmethod
    def start(self, source: FeatureSource) -> Statistics:
        """Sums of no point."""

    @abstractmethod
    def add(self, so_far: Statistics, block: Block) -> None:
        """Add the points of a block, in place; no value is looked at, so a GPU need not wait."""

    def count(self, so_far: Statistics, block: Block) -> None:
        """Add what an audit of merged statistics compares, in place."""
        so_far.by_class.add_(block.labels)

    def blocks(self, source: FeatureSource) -> Iterator[Block]:
        """Return the blocks that are read."""
        return source.blocks()

    def read(
        self, source: FeatureSource, callback: Callback | None = None, *, audited: bool = False
    ) -> Statistics:
        """Read a source; statistics that name no task."""
        with torch.no_grad():
            so_far = self.start(source)
            for block in self.blocks(source):
                self.add(so_far, block)
                if audited:
                    self.count(so_far, block)
                if callback is not None:
                    callback(len(block))
        return so_far

    def collect(self, source: FeatureSource, callback: Callback | None = None) -> Statistics:
        """Read one shard of the points; statistics to be merged with those of the others.

        Examples
        --------
        >>> from laplace_metric.curvature import ContrastiveLoss
        >>> from laplace_metric.curvature._ggn import curvature_passes
        >>> from laplace_metric.models._store import FeatureStore
        >>> from laplace_metric.heads._jacobian import LinearJacobian
        >>> loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
        >>> first = next(curvature_passes(LinearJacobian(torch.eye(2)), loss, "diag"))
        >>> first.collect(FeatureStore.of(torch.eye(2), torch.tensor([0, 1]))).by_class.counts
        tensor([1, 1])
        """
        return replace(self.read(source, callback, audited=True), task=self.task)

    def audit(self, merged: Statistics) -> None:
        """Raise ``InputError`` unless merged statistics are of the points of the first pass."""
        return

    def finish(self, merged: Statistics) -> Statistics:
        """Check the sums over all points; what the schedule is sent.

        Raises
        ------
        InputError, NonFiniteError
            If a sum is NaN or infinite.
        """
        check_finite_sums(merged)
        return merged

    def points(self, block: Block) -> Points:
        """A block in this geometry; a zero embedding gives NaN, found when the pass is over.

        Directions of blocks in memory are computed once for all passes.
        """
        if (derived := block.derived) is None or not self.geometry.spherical:
            return self._seen(block)
        owner, kept = (self.head, self.geometry), derived.kept
        if len(kept.owner) != len(owner) or any(map(is_not, kept.owner, owner)):
            kept = derived.kept = Kept(owner, derived.n_bytes)
        place = block.start, block.features.shape[0]  # the last block grows with rows appended
        if place not in kept.tensors:
            points = self._seen(block)
            size = points.directions.nbytes + points.lengths.nbytes
            if size <= kept.bytes_left:
                kept.bytes_left -= size
                kept.tensors[place] = points.directions, points.lengths
            return points
        u, r = kept.tensors[place]
        return Points(block.features.to(u.dtype), u, u, r)

    def _seen(self, block: Block) -> Points:
        return self.geometry.points_of(self.head, block.features, checked=False)


PassSchedule = Generator[Pass, Statistics, T]


def execute(schedule: PassSchedule[T], source: FeatureSource, *, progress: bool = False) -> T:
    """Run a schedule on one source in this process; a pass of over two seconds shows a bar."""
    finished: Any = None
    while True:
        task, result = next_pass(schedule, finished)
        if task is None:
            return result  # type: ignore[return-value]
        with tqdm(total=len(source), desc=task.name, delay=2, disable=not progress) as bar:
            finished = task.finish(task.read(source, bar.update if progress else None))


def next_pass(
    schedule: PassSchedule[T], finished: Statistics | None
) -> tuple[Pass | None, T | None]:
    """The next pass, or None and what the schedule returns."""
    try:
        return schedule.send(finished), None  # type: ignore[arg-type]
    except StopIteration as stop:
        return None, stop.value


def check_finite_sums(merged: Statistics) -> None:
    """Check that every total is finite.

    Raises
    ------
    InputError
        If a total is NaN: an embedding has no direction.
    NonFiniteError
        If one overflowed.
    """
    for tensor in (merged.by_class.sums, *merged.totals):
        if not tensor.numel():
            continue
        low, high = tensor.aminmax()  # one reading; NaN propagates
        if bool(low.isnan()):
            raise InputError(
                "some embeddings are exactly zero and have no direction (or the model overflows): "
                "remove those inputs or use distance='euclidean' on a network without "
                "normalisation."
            )
        if not bool(low.isfinite() & high.isfinite()):
            raise NonFiniteError(
                "the curvature overflows: scale the features down or fit in float64."
            )
