"""Features [N, D] and labels [N] on disk: one file of each in a folder, appended to.

The files are read by plain reading: what a memory map has read counts as resident memory, and its
page faults cost more than the reading. Each reading opens its file for itself, so that threads and
forked processes share no position.

Rows that survive the process are committed: both files are synced, then ``features.safetensors`` is
replaced, which says how many rows count and has the sha256 of both files up to there. A process
killed at any moment leaves the folder as of the last commit: bytes behind it are cut off when the
folder is opened again. One process writes a folder at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models._blocks import RowSpec

FEATURES = files.Kind("features", "the note of a folder of features", 3)
NOTE = "features.safetensors"
"""File that says what was committed."""
NAMES = ("features.bin", "labels.bin")
REMEDY = "Nothing was changed: restore the folder from a copy, or delete it and fit again."
Run = tuple[int, slice]
"""The first of some neighbouring rows, and where they go in what is read."""


class DiskRows:
    """Features [N, D] and labels [N] in a folder, which goes on where it was committed.

    Parameters
    ----------
    folder : path
        Made if needed. What was written to it after the last commit is cut off.

    Raises
    ------
    FileFormatError
        If a file is missing, altered, foreign, newer, or a link. Nothing is changed then.

    Examples
    --------
    >>> with TemporaryDirectory() as folder:
    ...     rows = DiskRows(folder)
    ...     rows.append(torch.ones(2, 3), torch.tensor([0, 1]))
    ...     rows.commit()
    ...     rows.append(torch.ones(5, 3), torch.arange(5))  # the process is killed here
    ...     resumed = DiskRows(folder)
    >>> len(resumed), resumed.exhausted
    (2, False)
    """

    def __init__(
        self, folder: Path | str, *, temporary: TemporaryDirectory[str] | None = None
    ) -> None:
        self.folder, self._temporary = Path(folder), temporary
        self.spec: RowSpec | None = None
        """Width and types: features [0, D], labels [0]; None before the first rows."""
        self.exhausted = False
        """Whether ``complete`` was called, now or before the folder was reopened."""
        self._n_rows = 0
        self._hashes = [hashlib.sha256() for _ in NAMES]
        names = (NOTE, *NAMES)
        if any(os.path.lexists(self.folder / name) for name in names):
            self._reopen()
        else:
            self.commit()

    @classmethod
    def temporary(cls, directory: str | None = None) -> DiskRows:
        """Make a new folder, removed by ``close``, with the object, or with the interpreter.

        ``directory``: where that folder lives; None: the system's temporary folder.
        """
        folder = TemporaryDirectory(prefix="laplace_metric_", dir=directory)
        return cls(folder.name, temporary=folder)

    def _reopen(self) -> None:
        try:
            saved = files.SavedFile(self.folder / NOTE)
            with saved.checked():
                self._restore(files.Fields(saved.part(FEATURES).content, "features"))
        except FileFormatError as error:
            raise FileFormatError(f"{error} {REMEDY}") from error
        files.remove_abandoned(self.folder / NOTE)
        for number, name in enumerate(NAMES if self.spec else ()):
            size = self._n_rows * self._row_bytes(number)
            if (path := self.folder / name).stat().st_size > size:
                with path.open("rb+") as file:
                    file.truncate(size)

    def __len__(self) -> int:
        return self._n_rows

    def append(self, features: Float[Tensor, "n D"], labels: Int[Tensor, " n"]) -> None:
        """Write rows behind the others; if that fails, the same call can be repeated.

        Raises
        ------
        InputError
            After ``complete``.
        WriteError
            On a full disk.
        """
        if self.exhausted:
            raise InputError(f"{self.folder} is complete: nothing can be appended.")
        columns = [rows.detach().cpu().contiguous() for rows in (features, labels)]
        if self.spec is None:
            self.spec = columns[0][:0].clone(), columns[1][:0].clone()
        for number, rows in enumerate(columns):
            path = files.refuse_link(self.folder / NAMES[number])
            with files.named_errors(path), path.open("r+b" if path.exists() else "x+b") as file:
                file.seek(self._n_rows * self._row_bytes(number))
                file.write(_bytes_of(rows))
        if self._temporary is None:
            for sha256, rows in zip(self._hashes, columns, strict=True):
                sha256.update(_bytes_of(rows))
        self._n_rows += len(features)

    def commit(self) -> None:
        """Make every row so far durable; return when it is. A temporary folder stays as it is."""
        if self._temporary is not None:
            return
        if self.spec is not None:
            with files.named_errors(self.folder):
                for name in NAMES:
                    files.sync_file(self.folder / name)
                files.sync_folder(self.folder)
        content = {
            "exhausted": self.exhausted,
            "rows": self._n_rows,
            "width": self.spec and self.spec[0].shape[1],
            "dtypes": [str(column.dtype).removeprefix("torch.") for column in self.spec or ()],
            "columns": [sha256.hexdigest() for sha256 in self._hashes],
        }
        files.write(self.folder / NOTE, files.Part(FEATURES, content))

    def complete(self) -> None:
        """Commit, and note that the loader was exhausted: ``exhausted`` is True from now on."""
        self.exhausted = True
        self.commit()

    def read(self, column: int, start: int, stop: int, *, pinned: bool = False) -> Tensor:
        """Return rows ``start`` to ``stop`` of features (0) or labels (1), in new memory."""
        return self._read(column, [(start, slice(0, stop - start))], stop - start, pinned=pinned)

    def rows(self, index: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        """Return the features at ``index`` (0 to N - 1), in any order and with repetitions."""
        values, inverse = torch.unique(index.cpu(), return_inverse=True)
        return self._read(0, _runs(values), len(values))[inverse]

    def close(self) -> None:
        """Remove the files of a temporary folder."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _row_bytes(self, number: int) -> int:
        assert self.spec is not None
        return self.spec[number].shape[1:].numel() * self.spec[number].element_size()

    def _read(self, number: int, runs: Iterable[Run], n: int, *, pinned: bool = False) -> Tensor:
        """Return rows [n, ...] of a column, filled with the runs.

        Raises
        ------
        FileFormatError
            If the file is gone or has become shorter.
        InputError
            If nothing was appended yet.
        """
        if self.spec is None:
            raise InputError("no features were appended.")
        like, path, size = self.spec[number], self.folder / NAMES[number], self._row_bytes(number)
        rows = torch.empty(n, *like.shape[1:], dtype=like.dtype, pin_memory=pinned)
        memory = _bytes_of(rows)
        try:
            with path.open("rb") as file:
                for start, part in runs:
                    file.seek(start * size)
                    target = memory[part.start * size : part.stop * size]
                    if file.readinto(target) < len(target):
                        raise FileFormatError(
                            f"{path} ends early: another program cut it. Fit again."
                        )
        except OSError as error:
            raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
        return rows

    def _restore(self, content: files.Fields) -> None:
        """Take what is committed, once both files are those that were written."""
        self._n_rows, self.exhausted = content.whole("rows"), content.flag("exhausted")
        if not content.items("dtypes"):
            return
        features, labels = (getattr(torch, name) for name in content.items("dtypes"))
        width = content.whole("width")
        self.spec = torch.empty(0, width, dtype=features), torch.empty(0, dtype=labels)
        hashes = content.items("columns")
        for number, (name, expected) in enumerate(zip(NAMES, hashes, strict=True)):
            path = files.refuse_link(self.folder / name)
            try:
                self._hashes[number] = _hash_of(path, self._n_rows * self._row_bytes(number))
            except OSError as error:
                raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
            if self._hashes[number].hexdigest() != expected:
                raise FileFormatError(f"{path} is damaged: its sha256 is not the one in {NOTE}.")


def _bytes_of(rows: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    return memoryview(rows.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _hash_of(path: Path, n_bytes: int) -> Any:
    """Return the sha256 of the first bytes of a file; of fewer, where it is shorter."""
    sha256 = hashlib.sha256()
    with open(path, "rb", opener=files.only_regular) as file:
        while block := file.read(min(2**20, n_bytes)):
            sha256.update(block)
            n_bytes -= len(block)
    return sha256


def _runs(index: Tensor) -> Iterator[Run]:
    """Yield a strictly increasing index as runs of neighbours.

    Examples
    --------
    >>> list(_runs(torch.tensor([2, 3, 7])))
    [(2, slice(0, 2, None)), (7, slice(2, 3, None))]
    """
    edges = [0, *((index.diff() != 1).nonzero().flatten() + 1).tolist(), len(index)]
    for first, last in pairwise(edges if len(index) else ()):
        yield int(index[first]), slice(first, last)
