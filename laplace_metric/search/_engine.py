"""Interface of engines: positions of the nearest vectors, and nothing about uncertainty."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.search._engine_settings import EngineKind


class Engine(ABC):
    """Finds the nearest of the vectors [N, d] that it was given."""

    vectors: Float[Tensor, "N d"]
    kind: EngineKind
    mapped: bool = False
    """True if it reads its vectors from disk."""

    @abstractmethod
    def search(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return the rows of the nearest vectors [Q, k], nearest first; 1 <= k <= N.

        -1 where an approximate engine found fewer than k.
        """

    @abstractmethod
    def updated(self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None) -> Engine:
        """Return the engine with other vectors [N, d].

        These are the ``remaining`` rows of the old ones, or all of them with new ones at the end.
        """
