"""The features of the fitting data, wherever they are kept, handed out in blocks or by index.

Rows on disk: one file of features and one of labels in a folder, appended to.

The files are read by plain reading: what a memory map has read counts as resident memory, and its
page faults cost more than the reading. Each reading opens its file for itself, so that threads and
forked processes share no position.

Rows that survive the process are committed: both files are synced, then ``features.json`` is
replaced, which says how many rows count and has the sha256 of both files up to there. A process
killed at any moment leaves the folder as of the last commit: bytes behind it are cut off when the
folder is opened again. One process writes a folder at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric import io as files
from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models._reading import (
    Block,
    Derived,
    FiniteChecks,
    Kept,
    RowSpec,
    check_shapes,
    check_spec,
)

BLOCK_BYTES = 4 * 2**20
"""Bytes of one block: small enough for a CPU's cache, large enough for a full-speed product."""

LABELS_AT_ONCE = 2**20
"""Labels that ``classes`` reads at once: 8 MiB."""
FINGERPRINTS = 5_000_000
"""Rows beyond which a store keeps no fingerprints."""
FINGERPRINT_BYTES = 2**24
"""As much of the features is fingerprinted at once."""
FINGERPRINT_STEP = 2.0**-13
"""s of ``row_fingerprints``: far above rounding, far below the distance of neighbours."""
Fingerprints = npt.NDArray[np.uint64]
"""[N], sorted, each once."""


def row_fingerprints(features: Float[Tensor, "n D"]) -> Fingerprints:
    """A number of 64 bits for each row h, unsorted: one byte each of eight coordinates.

    ``b_k = floor(p_k / s) mod 256`` with ``p_0 = ln |h|`` and ``p_k = w_k . h / |h|``, k = 1 to 7,
    and w_k [D] fixed random numbers of unit variance (random projections: Achlioptas 2003). While
    no p_k moves by more than s, no byte changes by more than 1, modulo 256; those of different
    rows are as close by chance, with probability 3 / 256 each. So rounding, which differs between
    batch sizes and devices, does not hide a row, as it would from a hash of its bytes; and rows
    are of one kind whatever the inputs are: images, texts, padded tokens, embeddings.

    Examples
    --------
    >>> h = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    >>> a, b = (row_fingerprints(rows).view(np.uint8).reshape(2, 8) for rows in (h, h + 1e-6))
    >>> bool(((a - b + 1).astype(np.uint8) <= 2).all())
    True
    """
    with torch.autocast(features.device.type, enabled=False):
        length = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        length = length.clamp(min=torch.finfo(length.dtype).tiny)
        weights = projection_weights(features.shape[1]).to(features)  # [7, D]
        projections = nn.functional.linear(features, weights) / length
    steps = torch.cat([length.log(), projections], 1).div_(FINGERPRINT_STEP)  # [n, 8]
    codes = steps.floor_().to(torch.int32).bitwise_and_(255).to(torch.uint8)
    return codes.cpu().numpy().view("<u8").astype(np.uint64).reshape(-1)


def sorted_fingerprints(parts: Sequence[Fingerprints]) -> Fingerprints:
    """All of them, sorted, each once."""
    joined = np.concatenate(parts)
    joined.sort()
    return joined[np.append(True, joined[1:] != joined[:-1])]


def projection_weights(width: int) -> Float[Tensor, "7 D"]:
    """Random numbers of unit variance, the same on every machine and in every version of torch."""
    drawn = hashlib.shake_128(b"laplace_metric").digest(2 * 7 * width)
    uniform = np.frombuffer(drawn, "<u2").reshape(7, width).astype(np.float64) / 2**15 - 1
    return torch.from_numpy(uniform * 3**0.5)


def block_rows(n_columns: int, itemsize: int, budget: int = BLOCK_BYTES) -> int:
    """Rows of a [rows, n_columns] block within ``budget`` bytes, at least 64."""
    return max(64, budget // max(1, n_columns * itemsize))


class MemoryRows:
    """Batches, joined when they are first read."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor]] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def spec(self) -> RowSpec | None:
        """Width and types: features [0, D], labels [0]."""
        return (self.batches[0][0][:0], self.batches[0][1][:0]) if self.batches else None

    def append(self, features: Float[Tensor, "n D"], labels: Int[Tensor, " n"]) -> None:
        """Keep rows; nothing is copied."""
        self.batches.append((features, labels))
        self._rows += len(features)

    def read(self, column: int, start: int, stop: int, *, pinned: bool = False) -> Tensor:
        """A view of rows of the features (0) or labels (1); ``pinned`` is for files."""
        return self._joined()[column][start:stop]

    def rows(self, index: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        """The features at ``index``."""
        features, _ = self._joined()
        return features[index.to(features.device)]

    def close(self) -> None:
        """Let go of the tensors."""
        self.batches.clear()

    def _joined(self) -> tuple[Tensor, Tensor]:
        if not self.batches:
            raise InputError("no features were appended.")
        if len(self.batches) > 1:
            features, labels = zip(*self.batches, strict=True)
            self.batches = [(torch.cat(features), torch.cat(labels))]
        return self.batches[0]


class FeatureStore:
    """Appendable features h [N, D] with labels [N], read back in blocks or by index.

    Parameters
    ----------
    memory_bytes : int
        Features beyond this many bytes go, with their labels, to temporary files (float32 or
        float64), which ``close`` removes.
    directory : str or None
        Where those files live; None: the system's temporary folder.
    durable : Path or None
        Write everything to ``DiskRows`` in this folder instead, which ``close`` leaves: the store
        goes on as of its last commit, with the same blocks, bit for bit.
    dtype : torch.dtype or None
        Features are handed out in this type, converted block by block; None: as stored.
    device : torch.device or None
        Where everything is handed out; None: the device of the first labels.

    Examples
    --------
    >>> store = FeatureStore.of(torch.ones(5, 3), torch.tensor([0, 0, 1, 1, 1]))
    >>> len(store), store.rows(torch.tensor([4])).shape
    (5, torch.Size([1, 3]))
    >>> [(block.start, block.stop, block.labels.tolist()) for block in store.blocks()]
    [(0, 5, [0, 0, 1, 1, 1])]
    """

    def __init__(
        self,
        memory_bytes: int = 512 * 2**20,
        directory: str | None = None,
        *,
        durable: Path | str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._memory_bytes, self._directory = memory_bytes, directory
        self._dtype, self._device = dtype, device
        self._open_rows: MemoryRows | DiskRows | None
        self._open_rows = MemoryRows() if durable is None else DiskRows(durable)
        self._finite = FiniteChecks()
        self._by_class: tuple[Tensor, dict[int, Tensor]] | None = None

    @classmethod
    def of(
        cls,
        features: Float[Tensor, "N D"],
        labels: Int[Tensor, " N"],
        *,
        dtype: torch.dtype | None = None,
    ) -> FeatureStore:
        """A store around tensors that are there already; nothing is copied."""
        check_shapes(features, labels, where="features")
        store = cls(dtype=dtype, device=labels.device)
        store._rows.append(features, labels)
        for rows in store._slices():
            where = f"features[{rows.start}:{rows.stop}]"
            store._finite.add(features[rows], where=where)
        return store

    def append(
        self, features: Float[Tensor, "n D"], labels: Int[Tensor, " n"], *, where: str
    ) -> None:
        """Add rows; ``where`` names them in an error (NaN, wrong length, wrong width).

        NaN on an accelerator is reported later: by ``commit``, or when rows are first read.
        """
        check_shapes(features, labels, where=where)
        features = at_least_float32(features.detach())
        check_spec(features, labels, self._rows.spec, where=where)
        self._finite.add(features, where=where)
        self._device = self._device or labels.device
        total = (len(self) + len(features)) * features.shape[1] * features.element_size()
        if isinstance(self._rows, MemoryRows) and total > self._memory_bytes:
            batches, self._open_rows = self._rows.batches, DiskRows.temporary(self._directory)
            while batches:
                self._open_rows.append(*batches.pop(0))
        self._rows.append(features, labels)

    def commit(self) -> None:
        """Make every row so far durable; without ``durable``, only the checks are finished."""
        if isinstance(rows := self._checked, DiskRows):
            rows.commit()

    def complete(self) -> None:
        """Commit, and note that the loader was exhausted."""
        if isinstance(rows := self._checked, DiskRows):
            rows.complete()

    @property
    def exhausted(self) -> bool:
        """True if a durable store was completed, now or before it was resumed."""
        return isinstance(self._rows, DiskRows) and self._rows.exhausted

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def width(self) -> int:
        """Numbers of a row, D; 0 without rows."""
        spec = self._rows.spec
        return 0 if spec is None else spec[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Size of the features, in memory or on disk."""
        spec = self._rows.spec
        return 0 if spec is None else len(self) * self.width * spec[0].element_size()

    @property
    def labels(self) -> Int[Tensor, " N"]:
        """Labels of all rows; those on disk are read each time, blocks have theirs."""
        rows = self._checked
        return self._move(rows.read(1, 0, len(self)) if rows.spec else torch.empty(0).long())

    @property
    def classes(self) -> Int[Tensor, " C"]:
        """The labels that occur, ascending."""
        rows, classes = self._checked, torch.empty(0, dtype=torch.int64)
        for start in range(0, len(self), LABELS_AT_ONCE):
            labels = rows.read(1, start, min(start + LABELS_AT_ONCE, len(self))).unique()
            classes = torch.cat([classes, labels.to(classes)]).unique()
        return self._move(classes)

    def members(self, label: int) -> Int[Tensor, " n"]:
        """Indices of the points of a class, ascending."""
        if self._by_class is None or len(self._by_class[0]) != len(self):
            labels = self.labels
            order = labels.argsort(stable=True)
            classes, counts = torch.unique_consecutive(labels[order], return_counts=True)
            members = order.split(counts.tolist())
            self._by_class = order, dict(zip(classes.tolist(), members, strict=True))
        order, members_of = self._by_class
        return members_of.get(label, order[:0])

    @property
    def device(self) -> torch.device:
        """Device on which everything is handed out: that of the labels that were appended."""
        return self._device or torch.device("cpu")

    def rows(self, index: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        """The features at ``index``."""
        features = self._move(self._checked.rows(index))
        return features.to(self._dtype or features.dtype)

    def blocks(self) -> Iterator[Block]:
        """Every row once, in blocks whose boundaries depend on width and stored type alone."""
        rows, pinned = self._checked, self.device.type == "cuda"
        derived = self._derived if isinstance(rows, MemoryRows) else None
        for part in self._slices():
            features, labels = (
                self._move(rows.read(column, part.start, part.stop, pinned=pinned))
                for column in (0, 1)
            )
            features = features.to(self._dtype or features.dtype)
            yield Block(part.start, features, labels, derived)

    def fingerprints(self) -> Fingerprints | None:
        """Return the fingerprints of all rows, to recognise fitted rows; None for too many rows."""
        rows, n = self._checked, len(self)
        if not 0 < n <= FINGERPRINTS:
            return None
        step = max(1, FINGERPRINT_BYTES * n // self.nbytes)
        whole = np.empty(n, np.uint64)  # small arrays between large ones would hold the heap open
        for start in range(0, n, step):
            stop = min(start + step, n)
            whole[start:stop] = row_fingerprints(rows.read(0, start, stop))
        return sorted_fingerprints([whole])

    @cached_property
    def _derived(self) -> Derived:
        """Derived values, as many as memory has left next to the features."""
        return Derived(max(0, self._memory_bytes - self.nbytes), Kept((), 0))

    def close(self) -> None:
        """Let go of the rows, and remove the temporary files, if there are any."""
        self.__dict__.pop("_derived", None)
        if self._open_rows is not None:
            self._open_rows.close()
        self._open_rows = None

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _rows(self) -> MemoryRows | DiskRows:
        if self._open_rows is None:
            raise InputError("the store is closed.")
        return self._open_rows

    @property
    def _checked(self) -> MemoryRows | DiskRows:
        if self._finite.pending:
            self._finite.settle()
        return self._rows

    def _slices(self) -> Iterator[slice]:
        """The rows of every block."""
        if (spec := self._rows.spec) is not None:
            step = block_rows(spec[0].shape[1], spec[0].element_size())
            for start in range(0, len(self), step):
                yield slice(start, min(start + step, len(self)))

    def _move(self, rows: Tensor) -> Tensor:
        """To the device; towards an accelerator, nothing waits for the copy."""
        return rows.to(self.device, non_blocking=self.device.type == "cuda")


# Rows on disk: one file of features and one of labels in a folder, appended to.

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
        """A new folder, removed by ``close``, with the object, or with the interpreter.

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
        """Rows ``start`` to ``stop`` of the features (0) or labels (1), in new (pinned) memory."""
        return self._read(column, [(start, slice(0, stop - start))], stop - start, pinned=pinned)

    def rows(self, index: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        """The features at ``index`` (0 to N - 1), in any order and with repetitions."""
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
        """Rows [n, ...] of a column, filled with the runs.

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
    """The memory of a contiguous tensor on the CPU."""
    return memoryview(rows.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _hash_of(path: Path, n_bytes: int) -> Any:
    """The sha256 of the first bytes of a file, to go on from; of fewer, where it is shorter."""
    sha256 = hashlib.sha256()
    with open(path, "rb", opener=files.only_regular) as file:
        while block := file.read(min(2**20, n_bytes)):
            sha256.update(block)
            n_bytes -= len(block)
    return sha256


def _runs(index: Tensor) -> Iterator[Run]:
    """A strictly increasing index as runs of neighbours.

    Examples
    --------
    >>> list(_runs(torch.tensor([2, 3, 7])))
    [(2, slice(0, 2, None)), (7, slice(2, 3, None))]
    """
    edges = [0, *((index.diff() != 1).nonzero().flatten() + 1).tolist(), len(index)]
    for first, last in pairwise(edges if len(index) else ()):
        yield int(index[first]), slice(first, last)
