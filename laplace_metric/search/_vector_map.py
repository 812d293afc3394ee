"""``VectorMap``: from what an index stores of head inputs to predictive vectors."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor


class VectorMap(Protocol):
    """Map from head inputs in the bases of posteriors to predictive vectors.

    That of one model is ``PredictiveVectors``, that of several ``EnsembleVectors``.
    """

    @property
    def variances(self) -> Float[Tensor, " A"]:
        """Variances of the posterior in its basis."""

    @property
    def columns(self) -> Int[Tensor, " r"] | None:
        """Coordinates of the posterior that are kept; None: all."""

    def with_columns(self, columns: Int[Tensor, " r"]) -> VectorMap:
        """Keep these coordinates."""

    def of_rank(
        self, second_moments: Float[Tensor, " A"], rank: int | None, kept: float
    ) -> VectorMap:
        """Keep the coordinates that matter most."""

    def lengths(self, x: Float[Tensor, "N A"]) -> tuple[float, float, Tensor]:
        """Return squared lengths of mean and posterior, and mean squares of the inputs [A]."""

    def __call__(self, x: Float[Tensor, "N A"], factor: float = 1.0) -> Float[Tensor, "N d"]:
        """Return predictive vectors, at a temperature in units of their own."""
