"""What a curvature reads its points from, and what a store keeps them in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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
