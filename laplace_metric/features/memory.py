"""Rows kept in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.features.protocol import Like, no_labels


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
