"""Blocks of points: features h [n, D] and labels [n], and what is computed from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Float, Int
from torch import Tensor

RowSpec = tuple[Tensor, Tensor]
"""Features [0, D] and labels [0]: the width and the types of all rows."""


@dataclass
class Derived:
    """Tensors computed from the blocks of a source, of one owner at a time, for their next reading.

    Parameters
    ----------
    n_bytes : int
        Number of bytes that may be stored.
    kept : Kept
        Objects of the present owner. Another owner replaces them and never changes them, so that
        each of several threads gets its own.
    """

    n_bytes: int
    kept: Kept


@dataclass
class Kept:
    """Objects of one owner: tensors by start and rows of their block, and the bytes left."""

    owner: tuple[object, ...]
    bytes_left: int
    tensors: dict[tuple[int, int], tuple[Tensor, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Rows ``start`` to ``stop`` of a source: features [n, D] and labels [n].

    Examples
    --------
    >>> import torch
    >>> block = Block(64, torch.ones(3, 5), torch.zeros(3, dtype=torch.int64))
    >>> len(block), block.stop
    (3, 67)
    """

    start: int
    features: Float[Tensor, "n D"]
    labels: Int[Tensor, " n"]
    derived: Derived | None = None
    """Where what is computed from the block may be kept, for its next reading."""

    def __len__(self) -> int:
        return len(self.features)

    @property
    def stop(self) -> int:
        """The row after the last one: where the next block starts."""
        return self.start + len(self)
