"""What a reader is asked for, and where it looks for files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from laplace_metric.datasets.remotes import BY_HAND, REMOTES
from laplace_metric.errors import InputError

VARIABLE = "LAPLACE_METRIC_DATA"


@dataclass(frozen=True)
class Request:
    """One call of `load`, as the readers see it; the fields are the arguments of `load`."""

    name: str
    split: str
    data: str | os.PathLike[str] | None = None
    limit: int | None = None
    size: int | None = None
    colour: bool = False

    @property
    def title(self) -> str:
        """Name and split, as it stands in `ImageSet.name`."""
        return f"{self.name}/{self.split}"

    def folder(self, create: bool = False) -> Path:
        """The data folder: the argument `data`, else the environment variable."""
        given = self.data if self.data is not None else os.environ.get(VARIABLE)
        if not given:
            raise InputError(
                f"{self.name!r} is read from a data folder: pass data=FOLDER "
                f"(--data FOLDER on the command line) or set the environment variable {VARIABLE}."
            )
        folder = Path(given).expanduser()
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            raise InputError(f"data={str(given)!r} is not a folder.")
        return folder

    def file(self, *choices: str) -> Path:
        """The first of the files `choices` (relative to the data folder) that exists."""
        return self._first("file", Path.is_file, choices)

    def directory(self, *choices: str) -> Path:
        """The first of the folders `choices` (relative to the data folder) that exists."""
        return self._first("folder", Path.is_dir, choices)

    def _first(self, kind: str, exists: Callable[[Path], bool], choices: tuple[str, ...]) -> Path:
        folder = self.folder()
        for choice in choices:
            if exists(folder / choice):
                return folder / choice
        looked = " or ".join(str(folder / choice) for choice in choices)
        raise InputError(
            f"{self.title} needs the {kind} {looked}, which is not there. {self._advice(choices)}"
        )

    def _advice(self, choices: tuple[str, ...]) -> str:
        if self.name in BY_HAND:
            return f"It is not downloaded; put the originals there by hand: {BY_HAND[self.name]}"
        remotes = REMOTES.get((self.name, self.split), ())
        urls = " ".join(remote.url for remote in remotes if remote.path in choices)
        return "Pass download=True, or put the original there by hand" + (
            f": {urls}" if urls else "."
        )

    def rows(self, n: int) -> Tensor:
        """Rows to keep of `n`: all, or `limit` evenly spaced ones (sorted sets stay mixed)."""
        kept = n if self.limit is None else min(self.limit, n)
        return torch.arange(kept) * n // max(kept, 1)
