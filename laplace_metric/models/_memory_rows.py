"""Features [N, D] and labels [N] in memory."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.models._blocks import RowSpec


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
        """Return a view of rows of the features (0) or labels (1); ``pinned`` is for files."""
        return self._joined()[column][start:stop]

    def rows(self, index: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        """Return the features at ``index``."""
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
