"""A fit that survives its process: a folder with features, finished passes and the present one.

    checkpoint.json      what is fitted: settings, head, model, ranks; another fit is refused
    features/            the spool of head inputs and labels, committed every few seconds
    pass-0003/           statistics of a finished pass
    partial/             of the pass that was running, every few seconds
    columns/             the reference points that were drawn

Sums are float64 and read in the same order, so what is resumed ends in the same bits. Nothing is
deleted: remove the folder when the posterior is saved.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric import files
from laplace_metric.contrastive import Pass, Statistics
from laplace_metric.errors import FileFormatError
from laplace_metric.features import FeatureStore
from laplace_metric.features.manifest import SPOOL

KIND = files.Kind("checkpoint", "a checkpoint of a fit", 1)
COLUMNS = files.Kind("columns", "reference points of a checkpoint", 1)
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
        if (folder / KIND.index).exists():
            self._check(json.loads(json.dumps(identity)))
        elif _holds_files(folder):
            raise FileFormatError(
                f"checkpoint_dir={str(folder)!r} holds files but no {KIND.index}: choose an empty "
                "folder."
            )
        else:
            files.write(folder, {"identity": identity}, {}, KIND)
        self._last = time.monotonic()

    def _check(self, identity: dict[str, Any]) -> None:
        there = files.read(self.folder, KIND)[0].get("identity")
        if there == identity:
            return
        known = there if isinstance(there, dict) else {}
        name = next(k for k in {**known, **identity} if known.get(k) != identity.get(k))
        raise FileFormatError(
            f"checkpoint_dir={str(self.folder)!r} belongs to another fit: {name} is "
            f"{known.get(name)!r} there and {identity.get(name)!r} here. Choose another folder, or "
            "delete this one."
        )

    def store(self, device: torch.device, dtype: torch.dtype | None) -> FeatureStore:
        """The features that are there, or an empty durable store."""
        folder = self.folder / "features"
        if (folder / SPOOL.index).exists() or not _only_empty_files(folder):
            return FeatureStore.resume(folder, device, dtype=dtype)
        for left_over in folder.glob("*"):  # killed before the first commit
            left_over.unlink()
        return FeatureStore(durable=folder, dtype=dtype, device=device)

    def due(self) -> bool:
        """Whether it is time to commit again."""
        if time.monotonic() - self._last < SECONDS:
            return False
        self._last = time.monotonic()
        return True

    def finished(self, number: int, task: Pass) -> Statistics | None:
        """What pass ``number`` ended with, if it did."""
        return self._load(self.folder / f"pass-{number:04d}", task)

    def keep(self, number: int, statistics: Statistics) -> None:
        """Note how pass ``number`` ended."""
        statistics.save(self.folder / f"pass-{number:04d}")

    def begun(self, number: int, task: Pass) -> Statistics | None:
        """What pass ``number`` had read when the process ended."""
        return self._load(self.folder / "partial" / str(number), task)

    def note(self, number: int, task: Pass, statistics: Statistics) -> None:
        """Note what pass ``number`` has read so far, if it is time to."""
        if self.due():
            replace(statistics, task=task.task).save(self.folder / "partial" / str(number))

    def _load(self, folder: Path, task: Pass) -> Statistics | None:
        if not (folder / "statistics.json").exists():  # killed before the first was written
            return None
        found = Statistics.load(folder)
        if found.task != task.task:
            raise FileFormatError(
                f"{folder} belongs to another fit (other weights, data or versions): delete "
                f"{str(self.folder)!r} or choose another checkpoint_dir."
            )
        return found

    def columns(self, draw: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Index groups, drawn once and then remembered."""
        folder = self.folder / "columns"
        if (folder / COLUMNS.index).exists():
            _, tensors = files.read(folder, COLUMNS)
            return [tensors[f"group.{i}"] for i in range(len(tensors))]
        groups = draw()
        files.write(folder, {}, {f"group.{i}": g for i, g in enumerate(groups)}, COLUMNS)
        return groups


def _only_empty_files(folder: Path) -> bool:
    return not folder.exists() or all(p.stat().st_size == 0 for p in folder.glob("[!.]*"))


def _holds_files(folder: Path) -> bool:
    """Whether there is more than what a process killed at its first write leaves behind."""
    started = (f".{KIND.name}", f"{KIND.name}-", ".")
    return folder.exists() and any(not p.name.startswith(started) for p in folder.iterdir())
