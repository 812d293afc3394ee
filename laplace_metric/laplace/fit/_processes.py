"""The processes of a fit: this one alone; ``distributed`` has those of a process group.

Every process runs the same passes over its own points. What they exchange are statistics, and, for
a finite margin, the points that stand as its columns. Before each exchange they report whether all
are well, so that an error ends every process and none waits.

The head that all processes of a fit agree on, also those whose shard is empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.errors import EmptyLoaderError
from laplace_metric.heads._identity import head_from_spec, head_spec
from laplace_metric.heads._locate import locate_head
from laplace_metric.heads._located import LocatedHead
from laplace_metric.heads._repeatable import check_repeatable
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.laplace.fit._points import Batches

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


def first_batch(batches: Batches, *, or_none: bool) -> tuple[ModelInput, Tensor] | None:
    """Return the first batch; ``or_none``: None of a process whose loader yields no batch.

    Raises
    ------
    EmptyLoaderError
        If there is none, unless ``or_none``.
    """
    try:
        return next(batches)
    except EmptyLoaderError:
        if or_none:
            return None
        raise


def agreed_head(
    model: nn.Module,
    head: nn.Module | str | None,
    first: tuple[ModelInput, Tensor] | None,
    processes: Processes,
) -> tuple[LocatedHead, Tensor | None]:
    """Return the head and its input on the first batch; a process without one takes another's.

    Raises
    ------
    EmptyLoaderError
        If no process has a batch.
    InputError
        If the model draws at random, or mixes the rows of a batch.
    ShardError
        If a process has no such head, or other weights in it.
    """

    def locate() -> tuple[LocatedHead, Tensor] | None:
        if first is None:
            return None
        located, activations = locate_head(model, first[0], head)
        check_repeatable(model, located, first[0], activations)
        return located, at_least_float32(activations.features)

    mine = processes.run_on_all(locate)
    if mine is not None and processes.n == 1:
        return mine
    specs = processes.gather(None if mine is None else head_spec(mine[0]))
    expected = next((spec for spec in specs if spec is not None), None)
    if expected is None:
        raise EmptyLoaderError("no rank's loader yielded a batch: pass loaders with data.")
    processes.agree(lambda: expected if mine is None else head_spec(mine[0]))
    return processes.run_on_all(lambda: mine or (head_from_spec(expected, model), None))
