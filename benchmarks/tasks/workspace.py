"""Where data and finished work are, and how much is to be done."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.sizes import Size
from laplace_metric.datasets import ImageSet, load


@dataclass(frozen=True)
class Workspace:
    """What every task and every run is given.

    Parameters
    ----------
    data : path or None
        Folder of the image sets; None: the environment variable ``LAPLACE_METRIC_DATA``.
    cache : Path
        Finished runs, trained networks and encoded images.
    size : Size
    download : bool
        Whether missing image sets are fetched.
    """

    data: str | None
    cache: Path
    size: Size
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    download: bool = False
    progress: bool = True

    def load(self, name: str, split: str, limit: int | None = None, **options: int) -> ImageSet:
        """An image set of the data folder."""
        return load(name, split, self.data, limit, download=self.download, **options)  # type: ignore[arg-type]

    def generator(self, seed: int) -> torch.Generator:
        """Draws on the device of the tensors."""
        return torch.Generator(self.device).manual_seed(seed)
