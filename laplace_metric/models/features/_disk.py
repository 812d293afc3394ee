"""Rows of one shape and type in a raw file, written and read without buffers or memory maps.

A memory map counts what was read as resident memory of the process; plain reading does not. Every
reading opens the file for itself: threads and forked processes do not share a position.

Rows in two raw files of a folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO
from itertools import pairwise
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models.features._rows import LABEL_ROWS, Like, no_labels


class RawFile:
    """The rows of a tensor [N, *shape] in a file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = RawFile(Path(folder) / "rows.bin", torch.float32, (2,))
    ...     file.write(0, torch.arange(6.0).view(3, 2))
    ...     read, some = file.read(1, 3), file.rows(torch.tensor([2, 0, 2]))
    ...     file.close()
    >>> read.tolist(), some[:, 0].tolist()
    ([[2.0, 3.0], [4.0, 5.0]], [4.0, 0.0, 4.0])
    """

    def __init__(self, path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self.row_bytes = dtype.itemsize * prod(shape)
        self._writer: FileIO | None = None

    @property
    def like(self) -> Tensor:
        """An empty tensor [0, *shape]."""
        return torch.empty(0, *self.shape, dtype=self.dtype)

    def write(self, start: int, rows: Tensor) -> None:
        """Put rows [n, *shape] at row ``start``: after a failure the same call can be repeated."""
        file, left = self._opened(), bytes_of(rows)
        file.seek(start * self.row_bytes)
        while left:
            left = left[file.write(left) :]

    def sync(self) -> None:
        """Return when what was written is on the disk."""
        os.fsync(self._opened().fileno())

    def read(self, start: int, stop: int, *, pinned: bool = False) -> Tensor:
        """Rows [stop - start, *shape]."""
        found = self._empty(stop - start, pinned=pinned)
        with FileIO(self.path) as file:
            file.seek(start * self.row_bytes)
            fill(file, bytes_of(found), self.path)
        return found

    def rows(self, index: Tensor) -> Tensor:
        """The rows at ``index`` [n], in any order and with repetitions."""
        if bool((index.diff() > 0).all()):
            return self._sorted_rows(index)
        values, inverse = torch.unique(index, return_inverse=True)
        return self._sorted_rows(values)[inverse]

    def close(self) -> None:
        """Close the handle for writing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _opened(self) -> FileIO:
        if self._writer is None:
            self.path.touch()
            self._writer = FileIO(self.path, "r+")
        return self._writer

    def _sorted_rows(self, index: Tensor) -> Tensor:
        """Rows at a strictly increasing index: one read a run of neighbours."""
        found = self._empty(len(index))
        view, size = bytes_of(found), self.row_bytes
        edges = [0, *((index.diff() != 1).nonzero().flatten() + 1).tolist(), len(index)]
        starts = index[edges[:-1]].tolist() if len(index) else []
        with FileIO(self.path) as file:
            for start, (first, last) in zip(starts, pairwise(edges), strict=False):
                file.seek(start * size)
                fill(file, view[first * size : last * size], self.path)
        return found

    def _empty(self, n: int, *, pinned: bool = False) -> Tensor:
        return torch.empty(n, *self.shape, dtype=self.dtype, pin_memory=pinned)


def bytes_of(rows: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor of any type."""
    return memoryview(rows.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def fill(file: FileIO, left: memoryview, path: Path) -> None:
    """Read from the file's position until ``left`` is full."""
    while left:
        n = file.readinto(left)
        if not n:
            raise FileFormatError(f"{path} ends early: another program cut it. Fit again.")
        left = left[n:]


FEATURES, LABELS = "features.bin", "labels.bin"


class DiskRows:
    """Features [N, D] and labels [N] in ``features.bin`` and ``labels.bin`` of a folder.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     rows = DiskRows(Path(folder))
    ...     rows.append(torch.ones(2, 3), torch.tensor([4, 5]))
    ...     features, labels = rows.read(1, 2)
    ...     rows.close()
    >>> features.tolist(), labels.tolist()
    ([[1.0, 1.0, 1.0]], [5])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._columns: tuple[RawFile, RawFile] | None = None
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def like(self) -> Like | None:
        """Width and types: features [0, D], labels [0]."""
        if self._columns is None:
            return None
        features, labels = self._columns
        return features.like, labels.like

    def append(self, features: Tensor, labels: Tensor) -> None:
        """Write features [n, D] and labels [n]; if that fails, the rows before are as they were."""
        if self._columns is None:
            self._shape((features, labels))
        for file, rows in zip(self._files, (features, labels), strict=True):
            file.write(self._rows, plain(rows))
        self._rows += len(features)

    def read(self, start: int, stop: int, *, pinned: bool = False) -> tuple[Tensor, Tensor]:
        """Features [stop - start, D] and labels [stop - start], in new (pinned) memory."""
        features, labels = (file.read(start, stop, pinned=pinned) for file in self._files)
        return features, labels

    def rows(self, index: Tensor) -> Tensor:
        """The features at ``index`` [n], in any order, as [n, D]; -1 is the last one."""
        file, index = self._files[0], index.cpu().long()
        if index.numel() and not -len(self) <= int(index.min()) <= int(index.max()) < len(self):
            raise InputError(f"index goes from {index.min()} to {index.max()}: N = {len(self)}.")
        return file.rows(index % max(1, len(self)))

    @property
    def labels(self) -> Tensor:
        """Labels [N], read from the file each time."""
        return no_labels() if self._columns is None else self._files[1].read(0, self._rows)

    def label_blocks(self) -> Iterator[Tensor]:
        """The same in parts of at most ``LABEL_ROWS``."""
        for start in range(0, self._rows, LABEL_ROWS):
            yield self._files[1].read(start, min(start + LABEL_ROWS, self._rows))

    def close(self) -> None:
        """Close the files."""
        for file in self._columns or ():
            file.close()

    @property
    def _files(self) -> tuple[RawFile, RawFile]:
        if self._columns is None:
            raise InputError("no features were appended.")
        return self._columns

    def _shape(self, like: Like) -> None:
        features, labels = like
        self._columns = (
            RawFile(self.folder / FEATURES, features.dtype, tuple(features.shape[1:])),
            RawFile(self.folder / LABELS, labels.dtype, tuple(labels.shape[1:])),
        )


class TemporaryRows(DiskRows):
    """The same in a new folder, removed by ``close``, with the object, or with the interpreter.

    Parameters
    ----------
    directory : str or None
        Where that folder lives; None: the system's temporary folder.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._temporary = TemporaryDirectory(prefix="laplace_metric_", dir=directory)
        super().__init__(Path(self._temporary.name))

    def close(self) -> None:
        """Close the files and remove them."""
        super().close()
        self._temporary.cleanup()


def plain(rows: Tensor) -> Tensor:
    """The rows as a contiguous CPU tensor."""
    return rows.detach().to(torch.device("cpu")).contiguous()
