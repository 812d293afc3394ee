"""A fit that survives its process: a folder with its features and its finished passes.

    checkpoint.safetensors   what is fitted: settings, head, model, ranks; another fit is refused
    features/                head inputs and labels, committed every few seconds
    pass-0003.safetensors    statistics of a finished pass
    columns.safetensors      the reference points that were drawn

Sums are float64 and read in the same order, so what is resumed ends in the same bits. Nothing is
deleted: remove the folder when the posterior is saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.curvature._passes import Pass
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.errors import FileFormatError, InputError, WriteError
from laplace_metric.io import locked
from laplace_metric.laplace.fit._fit_storage import FitStorage
from laplace_metric.laplace.fit._processes import Processes
from laplace_metric.models._disk_rows import NAMES, NOTE
from laplace_metric.models._feature_store import FeatureStore

KIND = files.Kind("checkpoint", "a checkpoint of a fit", 2)
COLUMNS = files.Kind("columns", "reference points of a checkpoint", 2)
FILE = "checkpoint.safetensors"
SECONDS = 10.0
"""Between two commits: what a killed process loses."""


class Checkpoint(FitStorage):
    """A folder that belongs to one fit.

    Parameters
    ----------
    folder : Path
        Folder of the checkpoint: empty or missing, or of the same fit.
    identity : dict
        Description of the fit, as JSON values.

    Raises
    ------
    FileFormatError
        If the folder holds something else, another fit, or is damaged; it is left as it is.
    """

    survives = True

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        if _holds_files(folder) and not (folder / FILE).exists():
            raise FileFormatError(
                f"checkpoint_dir={str(folder)!r} holds files but no {FILE}: choose an empty folder."
            )
        with ExitStack() as lock:
            with files.named_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                _hold(folder, lock)
            if (folder / FILE).exists():
                files.remove_abandoned(folder / FILE)
                saved = files.read(folder / FILE, KIND)[0].get("identity")
                if difference := files.difference(saved, identity):
                    raise FileFormatError(
                        f"checkpoint_dir={str(folder)!r} belongs to another fit: {difference}. "
                        "Choose another folder, or delete this one."
                    )
            else:
                files.write(folder / FILE, files.Part(KIND, {"identity": identity}))
            self._lock = lock.pop_all()
        self._last = time.monotonic()

    def close(self) -> None:
        """Let another process use the folder."""
        self._lock.close()

    def store(self, device: torch.device, dtype: torch.dtype | None) -> FeatureStore:
        """Return the features that are there, or an empty durable store."""
        folder = files.refuse_link(self.folder / "features")
        is_there = any((folder / name).exists() for name in (NOTE, *NAMES))
        if not is_there and any(self.folder.glob("pass-*.safetensors")):
            raise FileFormatError(f"{folder} is missing: restore it, or delete {self.folder}.")
        return FeatureStore(durable=folder, dtype=dtype, device=device)

    def due(self) -> bool:
        """Return True if it is time to commit again."""
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
        path = self._pass(number)
        if not path.exists():
            return None
        files.remove_abandoned(path)
        statistics = Statistics.load(path)
        if statistics.task != task.task:
            raise FileFormatError(
                f"{path} belongs to another fit (other weights, data or versions): delete "
                f"{str(self.folder)!r} or choose another checkpoint_dir."
            )
        return statistics

    def keep(self, number: int, statistics: Statistics) -> None:
        """Note how pass ``number`` ended."""
        statistics.save(self._pass(number))

    def _pass(self, number: int) -> Path:
        return files.refuse_link(self.folder / f"pass-{number:04d}.safetensors")

    def columns(self, draw: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Return index groups, drawn once and then remembered."""
        path = files.refuse_link(self.folder / "columns.safetensors")
        if path.exists():
            files.remove_abandoned(path)
            _, tensors = files.read(path, COLUMNS)
            return [tensors[f"group.{i}"] for i in range(len(tensors))]
        groups = draw()
        named = {f"group.{i}": group for i, group in enumerate(groups)}
        files.write(path, files.Part(COLUMNS, {}, named))
        return groups


def open_checkpoint(
    folder: Path, identity: Callable[[], dict[str, Any]], processes: Processes
) -> Checkpoint:
    """Open the checkpoint of this process; of several processes, each has a folder in it.

    Parameters
    ----------
    folder : Path
        Folder ``checkpoint_dir`` of the fit.
    identity : function
        Function that returns JSON values that describe the fit, among them a hash of the model.
    processes : Processes
        The processes that fit together.

    Raises
    ------
    FileFormatError
        If the folder belongs to another number of processes, or to another fit.
    """
    index, n = processes.index, processes.n
    processes.run_on_all(lambda: _check_ranks(folder, n))

    def mine() -> Path:
        return folder if n == 1 else files.refuse_link(folder / f"rank-{index}")

    return processes.run_on_all(lambda: Checkpoint(mine(), identity()))


def _check_ranks(folder: Path, n: int) -> None:
    n_before = len(list(folder.glob("rank-*"))) or int((folder / FILE).exists())
    if n_before not in (0, n):
        raise FileFormatError(
            f"checkpoint_dir={str(folder)!r} belongs to a fit of {n_before} processes, this one "
            f"has {n}: use as many, or choose another folder."
        )


def _hold(folder: Path, lock: ExitStack) -> None:
    """Take a lock that this process alone holds, until it is closed or the process ends."""
    try:
        lock.enter_context(locked(folder / ".lock"))
    except WriteError as error:
        raise InputError(
            f"checkpoint_dir={str(folder)!r} is in use by another process: wait for it, or choose "
            "another folder."
        ) from error


def _holds_files(folder: Path) -> bool:
    """Return whether there is more than what a process killed at its first write leaves behind."""
    return folder.exists() and any(not p.name.startswith(".") for p in folder.iterdir())
