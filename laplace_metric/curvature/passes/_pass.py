"""A pass reads every point once and ends in ``Statistics``; a program is a fit as a row of passes.

A program is a generator: it yields a pass, is sent the finished statistics of all points, and
returns the curvature. Who reads the points, in how many places, and how the parts are merged is
not its business: ``run`` reads one source in this process, ``laplace_metric.scale`` does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from laplace_metric._utils.files import digest
from laplace_metric.curvature._geometry import Geometry, Points
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.models.features import Block, FeatureSource
from laplace_metric.models.jacobians import HeadJacobian

T = TypeVar("T")
Watch = Callable[[int, Statistics], None]
"""(points read so far, their statistics), called after every block."""


@dataclass(frozen=True)
class Pass(ABC):
    """One reading of the points."""

    head: HeadJacobian
    geometry: Geometry

    name = ""
    """What is collected, in words."""

    @abstractmethod
    def given(self) -> list[Tensor]:
        """Results of earlier passes that this one depends on."""

    def shared(self) -> list[Tensor]:
        """Those of them that were not sums but computed, and so could differ by machine."""
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
        words = f"{self.name}|{self.geometry}|{head}|{sorted(self.settings().items())}"
        return digest(words, [self.head.parameters, *self.head.constants, *self.given()])

    @abstractmethod
    def start(self, source: FeatureSource) -> Statistics:
        """Sums of no point."""

    @abstractmethod
    def add(self, so_far: Statistics, block: Block) -> None:
        """Add the points of a block, in place; no value is looked at, so a GPU need not wait."""

    def blocks(self, source: FeatureSource, start: int) -> Iterator[Block]:
        """What is read, from point ``start`` on."""
        return (block for block in source.blocks() if block.start >= start)

    def read(
        self,
        source: FeatureSource,
        so_far: Statistics | None = None,
        watch: Watch | None = None,
    ) -> Statistics:
        """Read a source, from where ``so_far`` ends; statistics that name no task."""
        with torch.no_grad():
            so_far = self.start(source) if so_far is None else so_far
            for block in self.blocks(source, so_far.n_points):
                self.add(so_far, block)
                if watch is not None:
                    watch(block.stop, so_far)
        return so_far

    def collect(
        self,
        source: FeatureSource,
        so_far: Statistics | None = None,
        watch: Watch | None = None,
    ) -> Statistics:
        """Read a source, from where ``so_far`` ends; the statistics of its points.

        Examples
        --------
        >>> from laplace_metric.curvature import ContrastiveLoss, curvature_passes
        >>> from laplace_metric.models.features import FeatureStore
        >>> from laplace_metric.models.jacobians import LinearJacobian
        >>> loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
        >>> first = next(curvature_passes(LinearJacobian(torch.eye(2)), loss, "diag"))
        >>> first.collect(FeatureStore.of(torch.eye(2), torch.tensor([0, 1]))).by_class.counts
        tensor([1, 1])
        """
        return replace(self.read(source, so_far, watch), task=self.task)

    @abstractmethod
    def finish(self, whole: Statistics) -> Statistics:
        """Check the merged statistics of all points; what the program is sent."""

    def points(self, block: Block) -> Points:
        """A block in this geometry; a zero embedding gives NaN, found when the pass is over."""
        h = block.features
        return self.geometry.points(h, self.head.forward(h), checked=False)


PassSchedule = Generator[Pass, Statistics, T]


def run(schedule: PassSchedule[T], source: FeatureSource) -> T:
    """Run a program on one source in this process."""
    return drive(schedule, lambda task: task.finish(task.read(source)))


Attempt = Callable[[Callable[[], Any]], Any]
"""Calls what it is given; of several processes, one that fails there fails everywhere."""


def drive(
    schedule: PassSchedule[T],
    collect: Callable[[Pass], Statistics],
    attempt: Attempt = lambda work: work(),
) -> T:
    """Run a program; ``collect`` gives the finished statistics of a pass over all points."""
    task, result = attempt(lambda: advance(schedule, None))
    while task is not None:
        statistics = collect(task)
        task, result = attempt(partial(advance, schedule, statistics))
    return result


def advance(
    schedule: PassSchedule[T], statistics: Statistics | None
) -> tuple[Pass | None, T | None]:
    """The next pass, or None and what the program returns."""
    try:
        return schedule.send(statistics), None  # type: ignore[arg-type]
    except StopIteration as stop:
        return None, stop.value
