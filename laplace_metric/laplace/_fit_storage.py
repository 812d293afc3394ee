"""Storage of the points and the finished passes of a fit: memory, or (``distributed``) a folder.

With a folder, a fit that was killed goes on from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from laplace_metric.curvature._passes import Pass
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.models._store import FeatureStore


class FitStorage(ABC):
    """Points and finished passes of one process of a fit.

    Attributes
    ----------
    survives : bool
        True if what is kept outlives the process.
    """

    survives: bool

    @abstractmethod
    def store(self, device: torch.device, dtype: torch.dtype | None) -> FeatureStore:
        """Return the store of the points, with those that are there already."""

    @abstractmethod
    def due(self) -> bool:
        """Return True if it is time to commit the points that were read."""

    @abstractmethod
    def finished(self, number: int, task: Pass) -> Statistics | None:
        """Return the statistics of pass ``number`` if it was finished before, else None."""

    @abstractmethod
    def keep(self, number: int, statistics: Statistics) -> None:
        """Keep the statistics of the finished pass ``number``."""

    @abstractmethod
    def columns(self, draw: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Return the groups of column indices that were drawn before, or draw them."""

    @abstractmethod
    def close(self) -> None:
        """Let another process use what is kept."""


class InMemory(FitStorage):
    """Points in memory, beyond ``memory_bytes`` in temporary files; no pass is kept.

    Parameters
    ----------
    memory_bytes : int
        Most bytes of features in memory.
    """

    survives = False

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes

    def store(self, device: torch.device, dtype: torch.dtype | None) -> FeatureStore:
        """Return an empty store."""
        return FeatureStore(self.memory_bytes, dtype=dtype, device=device)

    def due(self) -> bool:
        """Return False: there is nothing to commit to."""
        return False

    def finished(self, number: int, task: Pass) -> None:
        """Return None: no pass was finished before."""

    def keep(self, number: int, statistics: Statistics) -> None:
        """Return: the schedule that asked for the pass has its statistics."""

    def columns(self, draw: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Draw."""
        return draw()

    def close(self) -> None:
        """Return: nothing is held open."""
