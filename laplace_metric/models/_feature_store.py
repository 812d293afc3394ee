"""Store the features of a fit, in memory or on disk, and hand them out in blocks or by index."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import BLOCK_BYTES, CACHE_BYTES, LEAST_ROWS, blocks
from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import InputError
from laplace_metric.models._blocks import Block, Derived, Kept
from laplace_metric.models._disk_rows import DiskRows
from laplace_metric.models._feature_checks import FiniteChecks, check_shapes, check_spec
from laplace_metric.models._fingerprints import (
    FINGERPRINTS,
    Fingerprints,
    row_fingerprints,
    sorted_fingerprints,
)
from laplace_metric.models._memory_rows import MemoryRows

DEVICE_BYTES = 2**27
"""Features of one block on an accelerator: a pass of 4 MiB blocks on an H100 starts kernels for
3.5 s, of 128 MiB blocks it takes 0.3 s (``benchmarks costs --size gpu``)."""


class FeatureStore:
    """Appendable features h [N, D] with labels [N], read back in blocks or by index.

    Parameters
    ----------
    memory_bytes : int
        Features beyond this many bytes go, with their labels, to temporary files (float32 or
        float64), which ``close`` removes.
    directory : str or None
        Folder of those files. None, the default: the system's temporary folder.
    durable : Path or None
        Write everything to ``DiskRows`` in this folder instead, which ``close`` leaves: the store
        goes on as of its last commit, with the same blocks on the
        same kind of device, bit for bit.
    dtype : torch.dtype or None
        Features are handed out in this type, converted block by block; None: as stored.
    device : torch.device or None
        Device on which everything is handed out. None, the default: that of the first labels.

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
        """Return a store around tensors that are there already; nothing is copied."""
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
        for part in blocks(len(self), 8):
            labels = rows.read(1, part.start, part.stop).unique()
            classes = torch.cat([classes, labels.to(classes)]).unique()
        return self._move(classes)

    def members(self, label: int) -> Int[Tensor, " n"]:
        """Return the indices of the points of a class, ascending."""
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
        """Return the features at ``index``."""
        features = self._move(self._checked.rows(index))
        return features.to(self._dtype or features.dtype)

    def blocks(self) -> Iterator[Block]:
        """Yield every row once, in blocks; their bounds depend on width, stored type and device."""
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
        budget = BLOCK_BYTES if self.device.type == "cpu" else DEVICE_BYTES
        whole = np.empty(n, np.uint64)  # small arrays between large ones would hold the heap open
        for part in blocks(n, self.nbytes // n, budget):
            whole[part] = row_fingerprints(rows.read(0, part.start, part.stop))
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
        """Yield the rows of every block."""
        if (spec := self._rows.spec) is not None:
            budget = CACHE_BYTES if self.device.type == "cpu" else DEVICE_BYTES
            row_bytes = spec[0].shape[1] * spec[0].element_size()
            yield from blocks(len(self), row_bytes, budget, LEAST_ROWS)

    def _move(self, rows: Tensor) -> Tensor:
        """Move rows to the device; towards an accelerator, nothing waits for the copy."""
        return rows.to(self.device, non_blocking=self.device.type == "cuda")
