"""What a curvature reads its points from, and what a store keeps them in.

What may be appended, and how many rows are handled at once.

Rows kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from laplace_metric.errors import InputError, LabelError, NonFiniteError

LABEL_ROWS = 2**20
"""Labels that are read at once: 8 MiB."""

Like = tuple[Tensor, Tensor]
"""Features [0, D] and labels [0]: the width and the types of all rows."""


@dataclass(frozen=True)
class Block:
    """Rows ``start`` to ``stop`` of a source: features [n, D] and labels [n].

    Examples
    --------
    >>> block = Block(64, torch.ones(3, 5), torch.zeros(3, dtype=torch.int64))
    >>> len(block), block.stop
    (3, 67)
    """

    start: int
    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.features)

    @property
    def stop(self) -> int:
        """The row after the last one: where the next block starts."""
        return self.start + len(self)


class FeatureSource(Protocol):
    """N points, read as often as needed, in blocks or by index."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where everything is handed out."""

    @property
    def labels(self) -> Tensor:
        """Labels [N]."""

    @property
    def classes(self) -> Tensor:
        """The labels that occur [C], ascending."""

    def members(self, label: int) -> Tensor:
        """Indices [n] of the points of a class, ascending."""

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Every row from ``start`` on, once; blocks have the same boundaries whatever the start."""

    def rows(self, index: Tensor) -> Tensor:
        """The features at ``index`` [n], as [n, D]."""


class Rows(Protocol):
    """Where a store keeps its rows: memory, a temporary pair of files, or a spool."""

    def __len__(self) -> int: ...

    @property
    def like(self) -> Like | None:
        """Width and types, or None before the first ``append``."""

    def append(self, features: Tensor, labels: Tensor) -> None:
        """Add features [n, D] and labels [n]."""

    def read(self, start: int, stop: int, *, pinned: bool = False) -> tuple[Tensor, Tensor]:
        """Features [stop - start, D] and labels; read from a file into pinned memory if asked."""

    def rows(self, index: Tensor) -> Tensor:
        """The features at ``index`` [n], as [n, D]."""

    @property
    def labels(self) -> Tensor:
        """Labels [N]."""

    def label_blocks(self) -> Iterator[Tensor]:
        """The same in parts of at most ``LABEL_ROWS``."""

    def close(self) -> None:
        """Let go of memory and handles."""


def no_labels() -> Tensor:
    """Labels [0] of a source to which nothing was appended."""
    return torch.empty(0, dtype=torch.int64)


BLOCK_BYTES = 4 * 2**20
"""Bytes of one block: small enough for a CPU's cache, large enough for a full-speed product."""

AT_ONCE = 1024
"""Batches on an accelerator whose check may be outstanding."""


def block_rows(n_columns: int, itemsize: int, budget: int = BLOCK_BYTES) -> int:
    """Rows of a [rows, n_columns] block within ``budget`` bytes, at least 64."""
    return max(64, budget // max(1, n_columns * itemsize))


def check_shapes(features: Tensor, labels: Tensor, *, where: str) -> None:
    """Raise unless features are floats [N, D] with one label a row."""
    if features.ndim != 2 or not features.is_floating_point():
        raise InputError(
            f"{where} is {features.dtype} {tuple(features.shape)}: pass floats [N, D]."
        )
    if len(features) != len(labels):
        raise LabelError(f"{where} has {len(features)} rows but {len(labels)} labels.")


def check_like(features: Tensor, labels: Tensor, like: Like | None, *, where: str) -> None:
    """Raise unless features [n, D] and labels [n] have the width and the types of earlier rows."""
    if like is None:
        return
    if features.shape[1] != like[0].shape[1]:
        raise InputError(
            f"{where} has {features.shape[1]} features, earlier ones {like[0].shape[1]}"
        )
    for name, now, before in zip(("features", "labels"), (features, labels), like, strict=True):
        if (now.dtype, now.shape[1:]) != (before.dtype, before.shape[1:]):
            raise InputError(
                f"{where} has {name} {now.dtype} {tuple(now.shape)}, earlier ones are "
                f"{before.dtype} of shape {('N', *before.shape[1:])}: pass one type."
            )


def check_finite(features: Tensor, *, where: str) -> None:
    """Raise ``NonFiniteError`` that names ``where`` and counts the rows with NaN or infinity."""
    if features.numel() == 0:
        return
    if not _finite(features):
        bad = int((~torch.isfinite(features)).any(1).sum())
        raise NonFiniteError(
            f"{where} holds NaN or infinity in {bad} of {len(features)} rows: check the inputs "
            "and the model's weights."
        )


def _finite(features: Tensor) -> Tensor:
    low, high = features.aminmax()  # one pass, NaN propagates, nothing [N, D] is allocated
    return torch.isfinite(low) & torch.isfinite(high)


class FiniteChecks:
    """``check_finite`` at once on the CPU; on an accelerator later, so that nothing waits for it.

    Examples
    --------
    >>> checks = FiniteChecks()
    >>> checks.add(torch.ones(2, 3), where="batch 0")
    >>> checks.settle()
    """

    def __init__(self) -> None:
        self._open: list[tuple[str, Tensor]] = []

    def add(self, features: Tensor, *, where: str) -> None:
        """Check features [n, D], or note a flag on their device."""
        if not _later(features.device):
            check_finite(features, where=where)
        elif features.numel():
            self._open.append((where, _finite(features)))
            if len(self._open) >= AT_ONCE:
                self.settle()

    def settle(self) -> None:
        """Raise ``NonFiniteError`` for the first bad batch, each time it is called after one."""
        if not self._open:
            return
        flags = torch.stack([flag for _, flag in self._open]).tolist()  # the one synchronisation
        bad = [where for (where, _), finite in zip(self._open, flags, strict=True) if not finite]
        if bad:
            raise NonFiniteError(
                f"{bad[0]} holds NaN or infinity: check the inputs and the model's weights."
            )
        self._open.clear()


def _later(device: torch.device) -> bool:
    return device.type == "cuda"


class MemoryRows:
    """Batches, joined when they are first read.

    Examples
    --------
    >>> rows = MemoryRows()
    >>> rows.append(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))
    >>> rows.append(torch.ones(1, 3), torch.zeros(1, dtype=torch.int64))
    >>> rows.read(1, 3)[0].shape
    torch.Size([2, 3])
    """

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor]] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def like(self) -> Like | None:
        """Width and types: features [0, D], labels [0]."""
        if not self.batches:
            return None
        features, labels = self.batches[0]
        return features[:0], labels[:0]

    def append(self, features: Tensor, labels: Tensor) -> None:
        """Keep features [n, D] and labels [n]; nothing is copied."""
        self.batches.append((features, labels))
        self._rows += len(features)

    def read(self, start: int, stop: int, *, pinned: bool = False) -> tuple[Tensor, Tensor]:
        """Views of features [stop - start, D] and labels; ``pinned`` is for files."""
        features, labels = self._joined()
        return features[start:stop], labels[start:stop]

    def rows(self, index: Tensor) -> Tensor:
        """The features at ``index`` [n], as [n, D]."""
        features, _ = self._joined()
        return features[index.to(features.device)]

    @property
    def labels(self) -> Tensor:
        """Labels [N]."""
        return self._joined()[1] if self.batches else no_labels()

    def label_blocks(self) -> Iterator[Tensor]:
        """The same at once: they are in memory."""
        yield self.labels

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
