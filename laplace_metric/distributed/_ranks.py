"""The ranks of a ``torch.distributed`` group, each of which fits its own shard."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from laplace_metric.curvature._statistics import Statistics
from laplace_metric.curvature.by_class import ClassSums
from laplace_metric.errors import InputError, ShardError
from laplace_metric.laplace.fit._processes import Processes, T


class Ranks(Processes):
    """The ranks of the initialised process group (gloo on CPUs, nccl on GPUs).

    Without a launcher (plain ``python``) there is one rank, so the same script runs.

    Raises
    ------
    InputError
        If a launcher started several processes that have no group yet.

    Examples
    --------
    >>> Ranks().gather(3), Ranks().run_on_all(lambda: 4)
    ([3], 4)
    """

    def __init__(self) -> None:
        grouped = dist.is_available() and dist.is_initialized()
        if not grouped and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(
                "distributed=True but no process group: call "
                "torch.distributed.init_process_group('gloo') (or 'nccl') before fit."
            )
        self.index, self.n = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
        on_gpu = grouped and dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else "cpu"

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Do this rank's share; an error on one rank ends all.

        Raises
        ------
        ShardError
            On every rank, if one fails. An error that all ranks have alike is raised as it is.
        """
        if self.n == 1:
            return work()
        error: Exception | None = None
        try:
            value = work()
        except Exception as caught:
            error = caught
        errors = self.gather(None if error is None else f"{type(error).__name__}: {error}")
        failed = [(rank, message) for rank, message in enumerate(errors) if message is not None]
        if error is not None and len(set(errors)) == 1:  # the same on every rank: none caused it
            raise error
        if failed:
            listed = "; ".join(f"rank {rank} of {self.n} failed: {m}" for rank, m in failed)
            raise ShardError(listed) from error
        return value

    def gather(self, value: T) -> list[T]:
        """Return the value of every rank, in order of rank."""
        values: list[Any] = [value] * self.n
        if self.n > 1:
            dist.all_gather_object(values, value)
        return values

    def agree(self, values: Callable[[], Mapping[str, object]]) -> None:
        """Raise ``ShardError`` on all, unless every rank names the same values."""
        if self.n == 1:
            return
        first, *others = self.gather(dict(self.run_on_all(values)))
        for rank, theirs in enumerate(others, start=1):
            for name, value in theirs.items():
                if value != first[name]:
                    raise ShardError(
                        f"rank {rank} of {self.n} has {name} {value!r}, rank 0 {first[name]!r}: "
                        "use the same weights and settings on every rank."
                    )

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Make these tensors those of rank 0, bit for bit."""
        for tensor in tensors if self.n > 1 else ():
            if tensor.numel():
                copy = self._on_backend(tensor)
                dist.broadcast(copy, 0)
                tensor.copy_(copy)

    def merged(self, statistics: Statistics, classes: Tensor | None = None) -> Statistics:
        """Return the sum over ranks, the same bits on each.

        ``classes``: if all count the same ones.

        Raises
        ------
        ShardError
            If the ranks are not at the same pass.
        """
        if self.n == 1:
            return statistics
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
        copy = self._on_backend(tensor)
        dist.all_reduce(copy)
        return copy.to(tensor.device)

    def _on_backend(self, tensor: Tensor) -> Tensor:
        """Return a contiguous copy where the group's backend wants it."""
        return tensor.detach().to(self._device, copy=True).contiguous()
