"""Rows in two raw files of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.features.protocol import LABEL_ROWS, Like, no_labels
from laplace_metric.features.raw import RawFile

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
