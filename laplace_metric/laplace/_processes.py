"""The processes of a fit: this one alone; ``distributed`` has those of a process group.

Every process runs the same passes over its own points. What they exchange are statistics, and, for
a finite margin, the points that stand as its columns. Before each exchange they report whether all
are well, so that an error ends every process and none waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from laplace_metric.curvature._statistics import Statistics

T = TypeVar("T")


class Processes(ABC):
    """The processes of one fit, as each of them sees the others.

    Attributes
    ----------
    index : int
        Number of this process, from 0.
    n : int
        Number of processes.
    """

    index: int
    n: int

    @abstractmethod
    def run_on_all(self, work: Callable[[], T]) -> T:
        """Do the share of this process; an error in one process ends all of them."""

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """Return the value of every process, in their order."""

    @abstractmethod
    def agree(self, values: Callable[[], Mapping[str, object]]) -> None:
        """Raise ``ShardError`` in every process unless all have the same values."""

    @abstractmethod
    def share(self, tensors: Sequence[Tensor]) -> None:
        """Make these tensors those of process 0, bit for bit."""

    @abstractmethod
    def merged(self, statistics: Statistics, classes: Tensor | None = None) -> Statistics:
        """Return the sum of all processes, the same bits in each.

        Parameters
        ----------
        statistics : Statistics
            Sums over the points of this process.
        classes : Tensor [C], optional
            Classes that every process counted, if they are known before reading. None, the default:
            the processes exchange the classes that occur.
        """


class OneProcess(Processes):
    """One process alone: nothing is exchanged.

    Examples
    --------
    >>> OneProcess().gather(3), OneProcess().run_on_all(lambda: 4)
    ([3], 4)
    """

    index, n = 0, 1

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Do the work."""
        return work()

    def gather(self, value: T) -> list[T]:
        """Return the one value."""
        return [value]

    def agree(self, values: Callable[[], Mapping[str, object]]) -> None:
        """Return: one process agrees with itself, so the values are not even computed."""

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Return: there is no other process."""

    def merged(self, statistics: Statistics, classes: Tensor | None = None) -> Statistics:
        """Return the statistics."""
        return statistics


ONE_PROCESS = OneProcess()
"""It has no state, so one is enough."""
