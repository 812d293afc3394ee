"""How to fit, as one checked value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from laplace_metric.errors import InputError

PRECISIONS = (None, torch.float32, torch.float64)


@dataclass(frozen=True)
class FitOptions:
    """See ``LaplaceEmbedder.fit``.

    Raises
    ------
    InputError
        For values of other types.

    Examples
    --------
    >>> FitOptions(distributed=True).dtype
    torch.float64
    """

    reference: int | None = None
    generator: torch.Generator | None = None
    memory_bytes: int = 512 * 2**20
    progress: bool = True
    precision: torch.dtype | None = None
    distributed: bool = False
    checkpoint_dir: Path | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InputError(
                f"precision={self.precision!r}: pass torch.float32, torch.float64 or None."
            )
        if self.reference is not None and not isinstance(self.reference, int):
            raise InputError(f"reference={self.reference!r}: pass a whole number of points.")
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise InputError(f"generator={self.generator!r}: pass a torch.Generator.")
        if not isinstance(self.memory_bytes, int) or self.memory_bytes < 0:
            raise InputError(f"memory_bytes={self.memory_bytes!r}: pass a whole number >= 0.")
        if self.checkpoint_dir is not None and self.checkpoint_dir.is_file():
            raise InputError(f"checkpoint_dir={str(self.checkpoint_dir)!r} is a file.")

    @property
    def dtype(self) -> torch.dtype | None:
        """Of the sums over points: what ranks add must not depend on how points are split."""
        return torch.float64 if self.distributed and self.precision is None else self.precision
