"""The interface of a batch of distributions over embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.randomness import Seed

if TYPE_CHECKING:
    from typing_extensions import Self


class EmbeddingDistribution(Protocol):
    """B independent distributions over R^Z or over the unit sphere in it."""

    @property
    def mean(self) -> Float[Tensor, "B Z"]:
        """The point that stands for each embedding in retrieval [B, Z]."""

    @property
    def variance(self) -> Float[Tensor, "B Z"]:
        """Expected squared deviation of each coordinate from ``mean`` [B, Z]."""

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """von Mises-Fisher concentration kappa of the direction [B], in [0, inf]."""

    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n B Z"]:
        """Return draws [n, B, Z], independent over n and B.

        Parameters
        ----------
        n : int
            Number of draws for each input, at least 0.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.
        """

    def select(self, index: Tensor | slice) -> Self:
        """Return the distributions at ``index`` of the batch."""

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return one batch of several."""
