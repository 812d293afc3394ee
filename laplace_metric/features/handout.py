"""Rows as they are handed out: on a device, in a type, in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.features.checks import block_rows
from laplace_metric.features.protocol import Block, Rows


@dataclass(frozen=True)
class HandOut:
    """Where to, and in which type (None: as stored).

    Examples
    --------
    >>> from laplace_metric.features.memory import MemoryRows
    >>> rows = MemoryRows()
    >>> rows.append(torch.ones(100, 2**16), torch.arange(100))
    >>> out = HandOut(torch.device("cpu"), torch.float64)
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
