"""Features of the fitting data, kept in memory while small and spilled to a temporary file after.

The class-sum curvature reads its points twice (class sums first, products second). The model runs
once: its features are kept here and read back in blocks. Memory held is at most ``memory_bytes``
(twice that for the moment in which the batches are joined) plus one block; beyond it they are on
disk. The file is removed by ``close``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric.errors import InputError, LabelError, NonFiniteError
from laplace_metric.jacobians.precision import at_least_float32

BLOCK_BYTES = 4 * 2**20
"""Bytes of one block: small enough for a CPU's cache, large enough for a full-speed product."""


def block_rows(n_columns: int, itemsize: int, budget: int = BLOCK_BYTES) -> int:
    """Rows of a [rows, n_columns] block within ``budget`` bytes, at least 64."""
    return max(64, budget // max(1, n_columns * itemsize))


class FeatureStore:
    """Appendable features h [N, D] with labels [N], read back in blocks or by index.

    Parameters
    ----------
    memory_bytes : int
        Features beyond this many bytes go to a temporary file (float32 or float64).
    directory : str or None
        Where that file lives; None: the system's temporary folder.

    Examples
    --------
    >>> store = FeatureStore.of(torch.ones(5, 3), torch.tensor([0, 0, 1, 1, 1]))
    >>> len(store), store.rows(torch.tensor([4])).shape
    (5, torch.Size([1, 3]))
    """

    def __init__(self, memory_bytes: int = 512 * 2**20, directory: str | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._directory = directory
        self._chunks: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._features: Tensor | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._file: Any = None
        self._rows = 0

    @classmethod
    def of(cls, features: Tensor, labels: Tensor) -> FeatureStore:
        """A store around tensors that are there already; nothing is copied."""
        check_shapes(features, labels, where="features")
        store = cls()
        store._features, store._labels, store._rows = features, [labels], len(features)
        for part, block in store.blocks():
            check_finite(block, where=f"features[{part.start}:{part.stop}]")
        return store

    def append(self, features: Tensor, labels: Tensor, *, where: str) -> None:
        """Add rows; ``where`` names them in an error (NaN, wrong length, wrong width)."""
        check_shapes(features, labels, where=where)
        check_finite(features, where=where)
        if self._chunks and features.shape[1] != self._chunks[0].shape[1]:
            raise InputError(
                f"{where} has {features.shape[1]} features, earlier ones {self._chunks[0].shape[1]}"
            )
        features = at_least_float32(features.detach())
        self._rows += len(features)
        self._labels.append(labels)
        self._chunks.append(features)
        if self._file is not None or self._rows * features[0].nbytes > self._memory_bytes:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="laplace_metric_", dir=self._directory
            )
            self._file = open(Path(self._folder.name) / "features.bin", "wb")  # noqa: SIM115
        for chunk in self._chunks:
            chunk.cpu().contiguous().numpy().tofile(self._file)
        self._chunks = [self._chunks[-1][:0]]  # keeps width, dtype and device

    def _all(self) -> Tensor:
        if self._features is None and self._file is None:
            one = len(self._chunks) == 1
            self._features = self._chunks[0] if one else torch.cat(self._chunks)
            self._chunks = []
        elif self._features is None:
            self._file.flush()
            like = self._chunks[0]
            dtype = np.float64 if like.dtype == torch.float64 else np.float32
            shape = (self._rows, like.shape[1])
            self._features = torch.from_numpy(np.memmap(self._file.name, dtype, "r+", shape=shape))
        return self._features

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Size of the features, in memory or on disk."""
        return self._all().nbytes

    @property
    def labels(self) -> Tensor:
        """Labels [N] int64."""
        if len(self._labels) != 1:
            self._labels = [torch.cat(self._labels)]
        return self._labels[0]

    @property
    def device(self) -> torch.device:
        """Where blocks are handed out: the device of the labels that were appended."""
        return self.labels.device

    @property
    def spilled(self) -> bool:
        """Whether the features live in a file."""
        return self._file is not None

    def rows(self, index: Tensor) -> Tensor:
        """The features at ``index`` [n], as [n, D]."""
        features = self._all()
        return features[index.to(features.device)].to(self.device)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """(slice, features [n, D]) one after the other, all rows once."""
        features = self._all()
        step = block_rows(features.shape[1], features.element_size())
        for start in range(0, self._rows, step):
            part = slice(start, min(start + step, self._rows))
            yield part, features[part].to(self.device)

    def close(self) -> None:
        """Remove the temporary file, if there is one."""
        self._features = None
        if self._file is not None and self._folder is not None:
            self._file.close()
            self._folder.cleanup()
            self._file = self._folder = None

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_shapes(features: Tensor, labels: Tensor, *, where: str) -> None:
    """Raise unless features are floats [N, D] with one label a row."""
    if features.ndim != 2 or not features.is_floating_point():
        raise InputError(
            f"{where} is {features.dtype} {tuple(features.shape)}: pass floats [N, D]."
        )
    if len(features) != len(labels):
        raise LabelError(f"{where} has {len(features)} rows but {len(labels)} labels.")


def check_finite(features: Tensor, *, where: str) -> None:
    """Raise ``NonFiniteError`` that names ``where`` and counts the rows with NaN or infinity."""
    if features.numel() == 0:
        return
    low, high = features.aminmax()  # one pass, NaN propagates, nothing [N, D] is allocated
    if not (torch.isfinite(low) and torch.isfinite(high)):
        bad = int((~torch.isfinite(features)).any(1).sum())
        raise NonFiniteError(
            f"{where} holds NaN or infinity in {bad} of {len(features)} rows: check the inputs "
            "and the model's weights."
        )
