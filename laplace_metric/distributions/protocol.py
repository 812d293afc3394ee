"""What a distribution over a batch of embeddings provides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self


class EmbeddingDistribution(Protocol):
    """B independent distributions over R^Z or over the unit sphere in it."""

    @property
    def mean(self) -> Tensor:
        """The point that stands for each embedding in retrieval [B, Z]."""

    @property
    def variance(self) -> Tensor:
        """Per-coordinate variance around ``mean`` [B, Z]."""

    @property
    def concentration(self) -> Tensor:
        """von Mises-Fisher concentration kappa of the direction [B], in [0, inf]."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """[n, B, Z], independent over n and B."""

    def select(self, index: Tensor | slice) -> Self:
        """The distributions at ``index`` of the batch."""

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """One batch out of several."""
