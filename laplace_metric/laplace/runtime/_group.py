"""The processes of a fit: one, or those of a ``torch.distributed`` group, each with its shard.

Every rank runs the same program; what they exchange are statistics, and, for a finite margin, the
points that stand as its columns. Before each exchange they tell each other whether all are well, so
that an error ends every rank and none waits.

The head of a fit over several ranks, also on a rank whose shard is empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from laplace_metric.curvature import ClassSums, Statistics
from laplace_metric.errors import EmptyLoaderError, InputError, ShardError
from laplace_metric.models.heads import LocatedHead, capture, describe, described_head, find_head

T = TypeVar("T")


class ProcessGroup:
    """One process: nothing is exchanged.

    Examples
    --------
    >>> ProcessGroup().gather(3), ProcessGroup().attempt(lambda: 4)
    ([3], 4)
    """

    index = 0
    n = 1

    @staticmethod
    def of(*, distributed: bool) -> ProcessGroup:
        """This process alone, or the initialised process group.

        Without a launcher (plain ``python``) there is one process, so the same script runs.

        Raises
        ------
        InputError
            If a launcher started several processes that have no group yet.
        """
        if not distributed:
            return ProcessGroup()
        if dist.is_available() and dist.is_initialized():
            return TorchProcessGroup()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(
                "distributed=True but no process group: call "
                "torch.distributed.init_process_group('gloo') (or 'nccl') before fit."
            )
        return ProcessGroup()

    def attempt(self, work: Callable[[], T]) -> T:
        """Do this rank's share; if any rank fails, ``ShardError`` on all.

        An error that all ranks have alike is raised as it is.
        """
        return work()

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in order of rank."""
        return [value]

    def agree(self, values: Mapping[str, object]) -> None:
        """Raise ``ShardError`` on all, unless every rank names the same values."""
        first, *others = self.gather(dict(values))
        for rank, told in enumerate(others, start=1):
            for name, value in told.items():
                if value != first[name]:
                    raise ShardError(
                        f"rank {rank} of {self.n} has {name} {value!r}, rank 0 {first[name]!r}: "
                        "use the same weights and settings on every rank."
                    )

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Make these tensors those of rank 0, bit for bit."""

    def merged(self, statistics: Statistics, classes: Tensor | None = None) -> Statistics:
        """The sum over ranks, the same bits on each; ``classes`` if all count the same ones."""
        return statistics


class TorchProcessGroup(ProcessGroup):
    """The default process group: gloo on CPUs, nccl on GPUs."""

    def __init__(self) -> None:
        self.index, self.n = dist.get_rank(), dist.get_world_size()
        on_gpu = dist.get_backend() == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None

    def attempt(self, work: Callable[[], T]) -> T:
        error: Exception | None = None
        try:
            value = work()
        except Exception as caught:
            error = caught
        told = self.gather(None if error is None else f"{type(error).__name__}: {error}")
        failed = [(rank, words) for rank, words in enumerate(told) if words is not None]
        if error is not None and len(set(told)) == 1:  # the same everywhere: nobody is to blame
            raise error
        if failed:
            listed = "; ".join(f"rank {rank} of {self.n} failed: {words}" for rank, words in failed)
            raise ShardError(listed) from error
        return value

    def gather(self, value: T) -> list[T]:
        found: list[T | None] = [None] * self.n
        dist.all_gather_object(found, value)
        return found  # type: ignore[return-value]

    def share(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.numel():
                sent = self._here(tensor)
                dist.broadcast(sent, 0)
                tensor.copy_(sent)

    def merged(self, statistics: Statistics, classes: Tensor | None = None) -> Statistics:
        if any(task != statistics.task for task in self.gather(statistics.task)):
            raise ShardError("the ranks are not at the same pass: this is a bug, please report it.")
        mine, device = statistics.by_class, statistics.by_class.sums.device
        if classes is None:
            classes = torch.unique(torch.cat(self.gather(mine.classes.cpu())))
        union = classes.to(device)
        wide = ClassSums.zeros(union, mine.sums.shape[1]) + mine
        counts, sums, *totals = map(self._summed, (wide.counts, wide.sums, *statistics.totals))
        return Statistics(statistics.task, ClassSums(union, counts, sums), tuple(totals))

    def _summed(self, tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return tensor
        sent = self._here(tensor)
        dist.all_reduce(sent)
        return sent.to(tensor.device)

    def _here(self, tensor: Tensor) -> Tensor:
        """A contiguous copy where the group's backend wants it."""
        return tensor.detach().to(self.device or "cpu", copy=True).contiguous()


def agreed_head(
    model: nn.Module,
    head: nn.Module | str | None,
    first: tuple[Any, Tensor] | None,
    ranks: ProcessGroup,
) -> tuple[LocatedHead, int]:
    """The head and Z, found by the first batch; a rank without one takes another's word.

    Raises
    ------
    EmptyLoaderError
        If no rank has a batch.
    ShardError
        If a rank has no such head, or other weights in it.
    """
    mine = ranks.attempt(lambda: None if first is None else _found(model, head, first[0]))
    if mine is not None and ranks.n == 1:
        return mine
    told = ranks.gather(None if mine is None else describe(*mine))
    expected = next((words for words in told if words is not None), None)
    if expected is None:
        raise EmptyLoaderError("no rank's loader yielded a batch: pass loaders with data.")
    ranks.agree(expected if mine is None else describe(*mine))
    return ranks.attempt(lambda: mine or (described_head(expected, model), expected["n_outputs"]))


def _found(model: nn.Module, head: nn.Module | str | None, inputs: Any) -> tuple[LocatedHead, int]:
    found = find_head(model, inputs, head)
    return found, capture(model, found, inputs).raw.shape[1]
