"""Storage of the points and the finished passes of a fit: memory, or (``distributed``) a folder.

With a folder, a fit that was killed goes on from there.

What decides the numbers of a fit, as JSON values: to compare processes, and a checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils import __version__
from laplace_metric._utils.randomness import as_generator
from laplace_metric.curvature._passes import Pass
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.heads._identity import head_spec
from laplace_metric.heads._located import LocatedHead
from laplace_metric.io import digest
from laplace_metric.laplace.fit._fit_options import FitOptions
from laplace_metric.laplace.fit._settings import Settings
from laplace_metric.models._feature_store import FeatureStore


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


def fit_identity(model: nn.Module, settings: Settings, options: FitOptions) -> dict[str, Any]:
    """Return, as JSON values, what every process of a fit must have alike: weights as a hash."""
    state = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    weights = digest(f"{model} {list(state)}", list(state.values()))
    sums = {"dtype": str(options.dtype), "reference": options.reference}
    return {**settings.to_json(), **sums, "model": weights, "version": __version__}


def checkpoint_identity(
    model: nn.Module, head: LocatedHead, settings: Settings, options: FitOptions
) -> dict[str, Any]:
    """Return, as JSON values, what decides the sums of a fit: they do not depend on the prior."""
    source = None if options.reference is None else as_generator(options.seed)
    state = [] if source is None else [source.get_state()]
    content = fit_identity(model, settings, options)
    for name in ("prior_precision", "n_effective", "positivity"):
        content.pop(name)
    return {**content, "head": head_spec(head), "generator": digest("", state)}
