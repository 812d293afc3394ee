"""Rows as they are handed out: on a device, in a type, in blocks.

The features of the fitting data, wherever they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import InputError
from laplace_metric.models.features._disk import DiskRows, TemporaryRows
from laplace_metric.models.features._rows import (
    Block,
    FiniteChecks,
    MemoryRows,
    Rows,
    block_rows,
    check_like,
    check_shapes,
    no_labels,
)
from laplace_metric.models.features._spool import Spool


@dataclass(frozen=True)
class BlockReader:
    """Where to, and in which type (None: as stored).

    Examples
    --------
    >>> from laplace_metric.models.features import MemoryRows
    >>> rows = MemoryRows()
    >>> rows.append(torch.ones(100, 2**16), torch.arange(100))
    >>> out = BlockReader(torch.device("cpu"), torch.float64)
    >>> [(b.start, b.stop, b.features.dtype) for b in out.blocks(rows, 64)]
    [(64, 100, torch.float64)]
    """

    device: torch.device
    dtype: torch.dtype | None = None

    def features(self, rows: Tensor) -> Tensor:
        """Features [n, D] on the device, in the type."""
        return self.labels(rows).to(self.dtype or rows.dtype)

    def labels(self, rows: Tensor) -> Tensor:
        """Labels [n] on the device; towards an accelerator, nothing waits for the copy."""
        return rows.to(self.device, non_blocking=self._accelerated)

    def blocks(self, rows: Rows, start: int = 0) -> Iterator[Block]:
        """The rows from ``start`` on; the boundaries are those of the stored type."""
        step = step_of(rows)
        if start != len(rows) and (start % step or not 0 <= start < len(rows)):
            raise InputError(
                f"start={start} is not where a block starts: choose a multiple of {step} below "
                f"N = {len(rows)}, or N."
            )
        return self._blocks(rows, range(start, len(rows), step))

    def _blocks(self, rows: Rows, starts: range) -> Iterator[Block]:
        for start in starts:
            stop = min(start + starts.step, starts.stop)
            features, labels = rows.read(start, stop, pinned=self._accelerated)
            yield Block(start, self.features(features), self.labels(labels))

    @property
    def _accelerated(self) -> bool:
        return self.device.type == "cuda"


def step_of(rows: Rows) -> int:
    """Rows of a block."""
    like = rows.like
    return 1 if like is None else block_rows(like[0].shape[1], like[0].element_size())


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
        Write everything to a ``Spool`` in this folder instead, which ``close`` leaves.
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
        self._memory_bytes, self._directory, self._dtype = memory_bytes, directory, dtype
        self._kept: Rows | None = MemoryRows() if durable is None else Spool(durable)
        self._device = device
        self._finite = FiniteChecks()
        self._by_class: tuple[Tensor, dict[int, Tensor]] | None = None

    @classmethod
    def of(
        cls, features: Tensor, labels: Tensor, *, dtype: torch.dtype | None = None
    ) -> FeatureStore:
        """A store around tensors that are there already; nothing is copied."""
        check_shapes(features, labels, where="features")
        store = cls(dtype=dtype)
        store._rows.append(features, labels)
        store._device = labels.device
        for start in range(0, len(features), step := step_of(store._rows)):
            stop = min(start + step, len(features))
            store._finite.add(features[start:stop], where=f"features[{start}:{stop}]")
        return store

    @classmethod
    def resume(
        cls,
        folder: Path | str,
        device: torch.device | str = "cpu",
        *,
        dtype: torch.dtype | None = None,
    ) -> FeatureStore:
        """Reopen a durable store as of its last commit: the same blocks, bit for bit.

        Raises
        ------
        FileFormatError
            If the folder is damaged (see ``Spool.resume``).
        """
        store = cls(dtype=dtype, device=torch.device(device))
        store._kept = Spool.resume(folder)
        return store

    def append(self, features: Tensor, labels: Tensor, *, where: str) -> None:
        """Add rows; ``where`` names them in an error (NaN, wrong length, wrong width).

        NaN on an accelerator is reported later: by ``commit``, or when rows are first read.
        """
        check_shapes(features, labels, where=where)
        features = at_least_float32(features.detach())
        check_like(features, labels, self._rows.like, where=where)
        self._finite.add(features, where=where)
        self._device = self._device or labels.device
        total = (len(self) + len(features)) * features.shape[1] * features.element_size()
        if not self.spilled and total > self._memory_bytes:
            self._spill()
        self._rows.append(features, labels)

    def commit(self) -> None:
        """Make every row so far durable; without ``durable``, only the checks are finished."""
        self._finite.settle()
        if isinstance(self._rows, Spool):
            self._rows.commit()

    def complete(self) -> None:
        """Commit, and note that the loader was exhausted."""
        self._finite.settle()
        if isinstance(self._rows, Spool):
            self._rows.complete()

    @property
    def exhausted(self) -> bool:
        """Whether a durable store was completed, now or before it was resumed."""
        return isinstance(self._rows, Spool) and self._rows.exhausted

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Size of the features, in memory or on disk."""
        like = self._rows.like
        return 0 if like is None else len(self) * like[0].shape[1] * like[0].element_size()

    @property
    def labels(self) -> Tensor:
        """Labels [N]; those on disk are read each time, blocks have theirs."""
        return self._out.labels(self._checked.labels)

    @property
    def classes(self) -> Tensor:
        """The labels that occur [C], ascending."""
        found = no_labels()
        for part in self._checked.label_blocks():
            found = torch.unique(torch.cat([found, part.unique().to(found)]))
        return self._out.labels(found)

    def members(self, label: int) -> Tensor:
        """Indices [n] of the points of a class, ascending."""
        if self._by_class is None or len(self._by_class[0]) != len(self):
            labels = self.labels
            order = labels.argsort(stable=True)
            found, counts = torch.unique_consecutive(labels[order], return_counts=True)
            members = order.split(counts.tolist())
            self._by_class = order, dict(zip(found.tolist(), members, strict=True))
        order, members_of = self._by_class
        return members_of.get(label, order[:0])

    @property
    def device(self) -> torch.device:
        """Where everything is handed out: the device of the labels that were appended."""
        return self._device or torch.device("cpu")

    @property
    def spilled(self) -> bool:
        """Whether the features live in a file."""
        return isinstance(self._rows, DiskRows)

    def rows(self, index: Tensor) -> Tensor:
        """The features at ``index`` [n], as [n, D]."""
        return self._out.features(self._checked.rows(index))

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """The rows from ``start`` on, once, in blocks whose boundaries are the same for any start.

        Raises
        ------
        InputError
            If ``start`` is not a boundary: 0 or the ``stop`` of a block.
        """
        return self._out.blocks(self._checked, start)

    def close(self) -> None:
        """Let go of the rows, and remove the temporary files, if there are any."""
        if self._kept is not None:
            self._kept.close()
        self._kept = None

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _rows(self) -> Rows:
        if self._kept is None:
            raise InputError("the store is closed.")
        return self._kept

    @property
    def _checked(self) -> Rows:
        self._finite.settle()
        return self._rows

    @property
    def _out(self) -> BlockReader:
        return BlockReader(self.device, self._dtype)

    def _spill(self) -> None:
        assert isinstance(self._rows, MemoryRows)
        kept = self._rows.batches
        self._kept = TemporaryRows(self._directory)
        while kept:
            self._kept.append(*kept.pop(0))
