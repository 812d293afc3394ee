"""A fit that survives its process: a folder with its features and its finished passes.

    checkpoint.json      what is fitted: settings, head, model, ranks; another fit is refused
    features/            head inputs and labels, committed every few seconds
    pass-0003/           statistics of a finished pass
    columns/             the reference points that were drawn

Sums are float64 and read in the same order, so what is resumed ends in the same bits. Nothing is
deleted: remove the folder when the posterior is saved.

The processes of a fit: one, or those of a ``torch.distributed`` group, each with its shard.

Every rank runs the same passes; what they exchange are statistics, and, for a finite margin, the
points that stand as its columns. Before each exchange they tell each other whether all are well, so
that an error ends every rank and none waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.curvature._passes import Pass, Statistics
from laplace_metric.curvature.by_class import ClassSums
from laplace_metric.errors import FileFormatError, InputError, ShardError, WriteError
from laplace_metric.io import locked
from laplace_metric.laplace._settings import FitOptions
from laplace_metric.models._store import FEATURE_FOLDER, NAMES, FeatureStore

KIND = files.FileKind("checkpoint", "a checkpoint of a fit", 1)
COLUMNS = files.FileKind("columns", "reference points of a checkpoint", 1)
SECONDS = 10.0
"""Between two commits: what a killed process loses."""


class Checkpoint:
    """A folder that belongs to one fit.

    Parameters
    ----------
    folder : Path
        Empty or missing, or of the same fit.
    identity : dict
        JSON values that say what is fitted.

    Raises
    ------
    FileFormatError
        If the folder holds something else, another fit, or is damaged; it is left as it is.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        if _holds_files(folder) and not (folder / KIND.index).exists():
            raise FileFormatError(
                f"checkpoint_dir={str(folder)!r} holds files but no {KIND.index}: choose an empty "
                "folder."
            )
        with ExitStack() as lock:
            with files.named_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                _hold(folder, lock)
            if (folder / KIND.index).exists():
                files.tidy(folder, KIND)
                saved = files.read(folder, KIND)[0].get("identity")
                if difference := files.difference(saved, identity):
                    raise FileFormatError(
                        f"checkpoint_dir={str(folder)!r} belongs to another fit: {difference}. "
                        "Choose another folder, or delete this one."
                    )
            else:
                files.write(folder, {"identity": identity}, {}, KIND)
            self._lock = lock.pop_all()
        self._last = time.monotonic()

    def close(self) -> None:
        """Let another process use the folder."""
        self._lock.close()

    def store(self, device: torch.device, dtype: torch.dtype | None) -> FeatureStore:
        """The features that are there, or an empty durable store."""
        folder = files.refuse_link(self.folder / "features")
        is_there = any((folder / name).exists() for name in (FEATURE_FOLDER.index, *NAMES))
        if not is_there and any(self.folder.glob("pass-*/statistics.json")):
            raise FileFormatError(f"{folder} is missing: restore it, or delete {self.folder}.")
        return FeatureStore(durable=folder, dtype=dtype, device=device)

    def due(self) -> bool:
        """True if it is time to commit again."""
        if time.monotonic() - self._last < SECONDS:
            return False
        self._last = time.monotonic()
        return True

    def finished(self, number: int, task: Pass) -> Statistics | None:
        """Return the result of pass ``number``, if it is complete.

        Raises
        ------
        FileFormatError
            If the folder holds a pass of another fit.
        """
        folder = self._pass(number)
        if not (folder / "statistics.json").exists():
            return None
        files.tidy(folder, Statistics.KIND)
        statistics = Statistics.load(folder)
        if statistics.task != task.task:
            raise FileFormatError(
                f"{folder} belongs to another fit (other weights, data or versions): delete "
                f"{str(self.folder)!r} or choose another checkpoint_dir."
            )
        return statistics

    def keep(self, number: int, statistics: Statistics) -> None:
        """Note how pass ``number`` ended."""
        statistics.save(self._pass(number))

    def _pass(self, number: int) -> Path:
        return files.refuse_link(self.folder / f"pass-{number:04d}")

    def columns(self, draw: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Index groups, drawn once and then remembered."""
        folder = files.refuse_link(self.folder / "columns")
        if (folder / COLUMNS.index).exists():
            files.tidy(folder, COLUMNS)
            _, tensors = files.read(folder, COLUMNS)
            return [tensors[f"group.{i}"] for i in range(len(tensors))]
        groups = draw()
        files.write(folder, {}, {f"group.{i}": g for i, g in enumerate(groups)}, COLUMNS)
        return groups


def open_checkpoint(
    identity: Callable[[], dict[str, Any]], options: FitOptions, group: ProcessGroup
) -> Checkpoint | None:
    """The checkpoint that ``options`` ask for; of several ranks, each has a folder in it.

    ``identity`` hashes the model, so it is called only where there is a checkpoint.

    Raises
    ------
    FileFormatError
        If the folder belongs to another number of ranks, or to another fit.
    """
    folder = options.checkpoint_dir
    if folder is None:
        return None
    group.run_on_all_ranks(lambda: _check_ranks(folder, group.n))

    def mine() -> Path:
        return folder if group.n == 1 else files.refuse_link(folder / f"rank-{group.index}")

    return group.run_on_all_ranks(lambda: Checkpoint(mine(), identity()))


def _check_ranks(folder: Path, n: int) -> None:
    n_before = len(list(folder.glob("rank-*"))) or int((folder / KIND.index).exists())
    if n_before not in (0, n):
        raise FileFormatError(
            f"checkpoint_dir={str(folder)!r} belongs to a fit of {n_before} processes, this one "
            f"has {n}: use as many, or choose another folder."
        )


def _hold(folder: Path, lock: ExitStack) -> None:
    """Take a lock that this process alone holds, until it is closed or the process ends."""
    try:
        lock.enter_context(locked(folder / ".lock", seconds=0.0))
    except WriteError as error:
        raise InputError(
            f"checkpoint_dir={str(folder)!r} is in use by another process: wait for it, or choose "
            "another folder."
        ) from error


def _holds_files(folder: Path) -> bool:
    """Return whether there is more than what a process killed at its first write leaves behind."""
    started = (f".{KIND.name}", f"{KIND.name}-", ".")
    return folder.exists() and any(not p.name.startswith(started) for p in folder.iterdir())


# The processes of a fit: one, or those of a ``torch.distributed`` group, each with its shard.

T = TypeVar("T")


class ProcessGroup:
    """The initialised process group (gloo on CPUs, nccl on GPUs), or one process alone.

    Without a launcher (plain ``python``) there is one process, so the same script runs.

    Parameters
    ----------
    distributed : bool
        Use the process group, if there is one.

    Raises
    ------
    InputError
        If a launcher started several processes that have no group yet.

    Examples
    --------
    >>> ProcessGroup().gather(3), ProcessGroup().run_on_all_ranks(lambda: 4)
    ([3], 4)
    """

    def __init__(self, *, distributed: bool = False) -> None:
        grouped = distributed and dist.is_available() and dist.is_initialized()
        if distributed and not grouped and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(
                "distributed=True but no process group: call "
                "torch.distributed.init_process_group('gloo') (or 'nccl') before fit."
            )
        self.index, self.n = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
        on_gpu = grouped and dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else "cpu"

    def run_on_all_ranks(self, work: Callable[[], T]) -> T:
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

    def agree(self, values: Mapping[str, object]) -> None:
        """Raise ``ShardError`` on all, unless every rank names the same values."""
        first, *others = self.gather(dict(values))
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
