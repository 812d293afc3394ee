"""Rows in a folder of safetensors files of at most ``SHARD_BYTES``; the newest rows in memory.

Shards are read by plain reading: what a memory map has read counts as resident memory, and its page
faults cost more than the reading. Each reading opens the file for itself, so that threads and
forked processes share no position.

Rows that survive the process: shards, and one JSON that says which of them are committed.

A process killed at any moment leaves the folder as of the last commit: a shard is written beside
its place and moved there, and replacing ``features.json`` is the one step that makes it count. One
process writes a folder at a time.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models._rows import RowSpec, check_shapes, check_spec, no_labels

SHARD_BYTES = 16 * 2**20
"""Of one shard, and of the rows that wait in memory."""

COLUMNS = FEATURES, LABELS = "features", "labels"

Run = tuple[int, slice]
"""The first of some neighbouring rows, and where they go in what is read."""


@dataclass(frozen=True)
class Shard:
    """A safetensors file with n rows of all columns."""

    path: Path
    n_rows: int
    offsets: dict[str, int]
    sha256: str = ""

    @classmethod
    def open(cls, path: Path, sha256: str = "") -> Shard:
        """Read how many rows there are, and where in the file each column starts."""
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        offsets = {name: 8 + size + header[name]["data_offsets"][0] for name in COLUMNS}
        return cls(path, header[LABELS]["shape"][0], offsets, sha256)

    def read(self, column: str, runs: Iterable[Run], rows: Tensor) -> None:
        """Fill contiguous ``rows`` [n, ...] with the runs.

        Raises
        ------
        FileFormatError
            If the file is gone or has become shorter.
        """
        memory = memoryview(rows.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        size = rows.nbytes // len(rows)
        try:
            with FileIO(self.path) as file:
                for start, part in runs:
                    file.seek(self.offsets[column] + start * size)
                    self._fill(file, memory[part.start * size : part.stop * size])
        except OSError as error:
            raise FileFormatError(f"{self.path} cannot be read: {error.strerror}.") from error

    def _fill(self, file: FileIO, memory: memoryview) -> None:
        while memory:
            if not (n_bytes := file.readinto(memory)):
                raise FileFormatError(f"{self.path} ends early: another program cut it. Fit again.")
            memory = memory[n_bytes:]


class Buffer:
    """Rows that wait in memory until they are a shard."""

    def __init__(self, spec: RowSpec) -> None:
        rows = [column.new_empty(1, *column.shape[1:]) for column in spec]
        self.capacity = max(1, SHARD_BYTES // sum(row.nbytes for row in rows))
        self.n_rows = 0
        self._columns = [row.new_empty(self.capacity, *row.shape[1:]) for row in rows]

    @property
    def columns(self) -> dict[str, Tensor]:
        """Views of features [n, D] and labels [n]."""
        return {k: c[: self.n_rows] for k, c in zip(COLUMNS, self._columns, strict=True)}

    def append(self, *columns: Tensor) -> None:
        """Copy features [n, D] and labels [n], for which there is room."""
        rows = slice(self.n_rows, self.n_rows + len(columns[0]))
        for memory, column in zip(self._columns, columns, strict=True):
            memory[rows] = column
        self.n_rows = rows.stop

    def read(self, column: str, runs: Iterable[Run], rows: Tensor) -> None:
        """Fill ``rows`` [n, ...] with the runs."""
        for start, part in runs:
            rows[part] = self.columns[column][start : start + part.stop - part.start]


class ShardRows(ABC):
    """Features [N, D] and labels [N] in ``features-000000.safetensors`` and so on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec: RowSpec | None = None
        """Width and types: features [0, D], labels [0]; None before the first rows."""
        self._shards: list[Shard] = []
        self._buffer: Buffer | None = None
        self._starts = [0]  # the first row of every shard, and of the buffer

    def __len__(self) -> int:
        return self._starts[-1] + (0 if self._buffer is None else self._buffer.n_rows)

    def append(self, features: Float[Tensor, "n D"], labels: Int[Tensor, " n"]) -> None:
        """Add rows; if that fails, the same call can be repeated."""
        columns = [rows.detach().cpu().contiguous() for rows in (features, labels)]
        if self._buffer is None:
            self._start((features, labels))
        assert self._buffer is not None
        if self._buffer.n_rows + len(features) > self._buffer.capacity:
            self.flush()
        if len(features) <= self._buffer.capacity:
            self._buffer.append(*columns)
        else:
            pieces = [column.split(self._buffer.capacity) for column in columns]
            self._write_all([dict(zip(COLUMNS, p, strict=True)) for p in zip(*pieces, strict=True)])

    def flush(self) -> None:
        """Write the rows that wait in memory."""
        if self._buffer is not None and self._buffer.n_rows:
            self._write_all([self._buffer.columns])
            self._buffer.n_rows = 0

    def read(
        self, start: int, stop: int, *, pinned: bool = False
    ) -> tuple[Float[Tensor, "n D"], Int[Tensor, " n"]]:
        """Rows ``start`` to ``stop``, in new (pinned) memory."""
        features = self._neighbours(0, start, stop, pinned=pinned)
        return features, self._neighbours(1, start, stop, pinned=pinned)

    def labels(self, start: int, stop: int) -> Int[Tensor, " n"]:
        """Labels of the rows ``start`` to ``stop``."""
        return no_labels() if self.spec is None else self._neighbours(1, start, stop)

    def rows(self, index: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        """The features at ``index``, in any order and with repetitions; -1 is the last one.

        Raises
        ------
        InputError
            If an index is outside.
        """
        index = index.cpu().long()
        if len(self) and len(index) and not -len(self) <= index.min() <= index.max() < len(self):
            raise InputError(f"index goes from {index.min()} to {index.max()}: N = {len(self)}.")
        index = index % max(1, len(self))
        if bool((index.diff() > 0).all()):
            return self._column(0, index)
        values, inverse = torch.unique(index, return_inverse=True)
        return self._column(0, values)[inverse]

    def close(self) -> None:
        """Let go of the rows in memory."""
        self._buffer = None

    @abstractmethod
    def _write(self, path: Path, columns: dict[str, Tensor]) -> Shard:
        """Write a shard."""

    def _start(self, like: RowSpec) -> None:
        self.spec = (
            like[0].new_empty(0, like[0].shape[1], device="cpu"),
            like[1].new_empty(0, device="cpu"),
        )
        self._buffer = Buffer(self.spec)

    def _write_all(self, shards: list[dict[str, Tensor]]) -> None:
        """Write shards; they count when all of them are there."""
        first = len(self._shards)
        paths = [self.folder / f"features-{first + i:06d}.safetensors" for i in range(len(shards))]
        self._adopt([self._write(path, c) for path, c in zip(paths, shards, strict=True)])

    def _adopt(self, shards: list[Shard]) -> None:
        for shard in shards:
            self._shards.append(shard)
            self._starts.append(self._starts[-1] + shard.n_rows)

    def _neighbours(self, number: int, start: int, stop: int, *, pinned: bool = False) -> Tensor:
        """Rows ``start`` to ``stop`` of a column, without an index, which would cost as much."""
        rows = self._empty(number, stop - start, pinned=pinned)
        for part, first, end in zip(
            self._parts, self._starts, [*self._starts[1:], stop], strict=True
        ):
            a, b = max(start, first), min(stop, end)
            if a < b:
                part.read(
                    COLUMNS[number], [(a - first, slice(0, b - a))], rows[a - start : b - start]
                )
        return rows

    def _column(self, number: int, index: Tensor) -> Tensor:
        """Rows of a column at a strictly increasing index: one reading a run of neighbours."""
        rows = self._empty(number, len(index))
        cuts = torch.searchsorted(index, torch.tensor(self._starts[1:], dtype=torch.int64))
        edges = pairwise([0, *cuts.tolist(), len(index)])
        for part, start, (a, b) in zip(self._parts, self._starts, edges, strict=True):
            if a < b:
                part.read(COLUMNS[number], _runs(index[a:b] - start), rows[a:b])
        return rows

    @property
    def _parts(self) -> list[Shard | Buffer]:
        if self._buffer is None:
            raise InputError("no features were appended.")
        return [*self._shards, self._buffer]

    def _empty(self, number: int, n_rows: int, *, pinned: bool = False) -> Tensor:
        if self.spec is None:
            raise InputError("no features were appended.")
        column = self.spec[number]
        return torch.empty(n_rows, *column.shape[1:], dtype=column.dtype, pin_memory=pinned)


def _runs(index: Tensor) -> Iterator[Run]:
    """A strictly increasing index as runs of neighbours.

    Examples
    --------
    >>> list(_runs(torch.tensor([2, 3, 7])))
    [(2, slice(0, 2, None)), (7, slice(2, 3, None))]
    """
    edges = [0, *((index.diff() != 1).nonzero().flatten() + 1).tolist(), len(index)]
    for start, (first, last) in zip(index[edges[:-1]].tolist(), pairwise(edges), strict=True):
        yield start, slice(first, last)


class TemporaryRows(ShardRows):
    """Shards in a new folder, removed by ``close``, with the object, or with the interpreter.

    Parameters
    ----------
    directory : str or None
        Where that folder lives; None: the system's temporary folder.

    Examples
    --------
    >>> rows = TemporaryRows()
    >>> rows.append(torch.ones(2, 3), torch.tensor([4, 5]))
    >>> features, labels = rows.read(1, 2)
    >>> rows.close()
    >>> features.tolist(), labels.tolist()
    ([[1.0, 1.0, 1.0]], [5])
    """

    def __init__(self, directory: str | None = None) -> None:
        self._temporary = TemporaryDirectory(prefix="laplace_metric_", dir=directory)
        super().__init__(Path(self._temporary.name))

    def close(self) -> None:
        """Remove the files."""
        super().close()
        self._temporary.cleanup()

    def _write(self, path: Path, columns: dict[str, Tensor]) -> Shard:
        save_file(columns, path)
        return Shard.open(path)


FEATURE_FOLDER = files.FileKind("features", "a folder of features", 1)
SHARD_NAME = re.compile(r"features-\d+\.safetensors")
HIDDEN_NAME = re.compile(r"\.features[-.\w]*\.(json|safetensors)\.([0-9a-f]{16}\.tmp|lock)")
REMEDY = "Nothing was changed: restore the folder from a copy, or delete it and fit again."


class DurableRows(ShardRows):
    """Features [N, D] and labels [N] in a folder, appended and committed.

    Parameters
    ----------
    folder : Path
        A folder without features; made if needed. One with features: ``DurableRows.resume``.

    Raises
    ------
    InputError
        If the folder holds features.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     rows = DurableRows(folder)
    ...     rows.append(torch.ones(2, 3), torch.tensor([0, 1]))
    ...     rows.commit()
    ...     rows.append(torch.ones(5, 3), torch.arange(5))  # the process is killed here
    ...     resumed = DurableRows.resume(folder)
    >>> len(resumed), resumed.exhausted
    (2, False)
    """

    exhausted = False
    """Whether ``complete`` was called, now or before the folder was reopened."""

    _committed: bytes | None = None
    """The JSON as this process wrote or read it last."""

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Path(folder))
        if self._index.exists() or any(self.folder.glob("features-*.safetensors")):
            raise InputError(
                f"{folder} holds features already: reopen it with DurableRows.resume, or choose "
                "another folder."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._publish()

    @classmethod
    def resume(cls, folder: Path | str) -> DurableRows:
        """Reopen a folder as it was at the last commit; what was written after it is removed.

        Raises
        ------
        FileFormatError
            If a file is missing, altered, foreign or newer. Nothing is changed in that case.
        """
        rows = cls.__new__(cls)
        ShardRows.__init__(rows, Path(folder))
        content = _read_index(rows.folder)
        shards = [_verified(rows.folder / Path(n).name, s) for n, s in content["shards"].items()]
        rows._committed, rows.exhausted = rows._index.read_bytes(), content["exhausted"]
        if content["dtypes"]:
            features, labels = (getattr(torch, name) for name in content["dtypes"])
            width = content["width"]
            rows._start((torch.empty(0, width, dtype=features), torch.empty(0, dtype=labels)))
        rows._adopt(shards)
        rows._remove_uncommitted()
        return rows

    def append(self, features: Float[Tensor, "n D"], labels: Int[Tensor, " n"]) -> None:
        """Add rows; they count from the next ``commit`` on.

        Raises
        ------
        InputError
            For another width or type than before, or after ``complete``.
        """
        check_shapes(features, labels, where="features")
        check_spec(features, labels, self.spec, where="features")
        if self.exhausted:
            raise InputError(f"{self.folder} is complete: nothing can be appended.")
        super().append(features, labels)

    def commit(self) -> None:
        """Make every row so far durable; return when it is.

        Raises
        ------
        FileFormatError
            If another process has written to the folder.
        """
        self.flush()
        self._publish()

    def complete(self) -> None:
        """Commit, and note that the loader was exhausted: ``exhausted`` is True from now on."""
        self.exhausted = True
        self.commit()

    @property
    def _index(self) -> Path:
        return self.folder / FEATURE_FOLDER.index

    def _write(self, path: Path, columns: dict[str, Tensor]) -> Shard:
        with files.writing(path) as temporary:
            save_file(columns, temporary)
            shard = Shard.open(temporary)
            sha256 = files.sha256_of(temporary)
        return Shard(path, shard.n_rows, shard.offsets, sha256)

    def _publish(self) -> None:
        """Replace the JSON, if there is anything new; return when it is on the disk."""
        content = _index_of(self._shards, self.spec, exhausted=self.exhausted)
        if content == self._committed:
            return
        if self._committed is not None and self._index.read_bytes() != self._committed:
            # it may have removed shards of this one
            raise FileFormatError(f"{self.folder} is written by another process: use two folders.")
        files.sync_folder(self.folder)  # the shards' names
        files.write_atomically(self._index, content)
        files.sync_folder(self.folder)
        self._committed = content

    def _remove_uncommitted(self) -> None:
        """Remove shards that the JSON does not name, and files that were not finished."""
        committed = {shard.path for shard in self._shards}
        for path in set(self.folder.glob("features-*")) - committed:
            if SHARD_NAME.fullmatch(path.name):
                path.unlink(missing_ok=True)
        for path in self.folder.glob(".features*"):
            if HIDDEN_NAME.fullmatch(path.name):
                files.remove_hidden(path)


def _index_of(shards: list[Shard], spec: RowSpec | None, *, exhausted: bool) -> bytes:
    """The JSON of what is committed; with its own sha256, so that every altered bit is noticed."""
    content = {
        "exhausted": exhausted,
        "width": spec and spec[0].shape[1],
        "dtypes": [str(column.dtype).removeprefix("torch.") for column in spec or ()],
        "shards": {s.path.name: {"rows": s.n_rows, "sha256": s.sha256} for s in shards},
    }
    header = {"format": FEATURE_FOLDER.format, "version": FEATURE_FOLDER.version}
    return json.dumps(files.sealed({**header, **content}), indent=1).encode()


def _read_index(folder: Path) -> dict[str, Any]:
    """Read the file of ``_index_of``."""
    try:
        content = files.read_index(folder, FEATURE_FOLDER)
    except FileFormatError as error:
        raise FileFormatError(f"{error} {REMEDY}") from error
    return {name: content.get(name) for name in ("exhausted", "width", "dtypes", "shards")}


def _verified(path: Path, committed: dict[str, Any]) -> Shard:
    """A committed shard; ``FileFormatError`` if the file is missing or was altered."""
    try:
        sha256 = files.sha256_of(path)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}. {REMEDY}") from error
    if sha256 != committed["sha256"]:
        raise FileFormatError(
            f"{path} is damaged: its sha256 is not the one in {FEATURE_FOLDER.index}. {REMEDY}"
        )
    return Shard.open(path, sha256)
