"""Rows of one shape and type in a raw file, written and read without buffers or memory maps.

A memory map counts what was read as resident memory of the process; plain reading does not. Every
reading opens the file for itself: threads and forked processes do not share a position.
"""

from __future__ import annotations

import os
from io import FileIO
from itertools import pairwise
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from laplace_metric.errors import FileFormatError


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
