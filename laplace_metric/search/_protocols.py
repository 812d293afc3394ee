"""Requirements of an index: a fitted model, and encoders of its items and its queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from laplace_metric.inputs import Inputs
from laplace_metric.laplace import Fitted
from laplace_metric.models._fingerprints import Fingerprints
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._pair_distances import PairMoments
from laplace_metric.search._vector_map import VectorMap


class FittedEmbedder(Protocol):
    """A model and the posterior over its head: what a search needs of ``LaplaceEmbedder``."""

    @property
    def model(self) -> nn.Module:
        """Inputs -> [B, Z]."""

    @property
    def fitted_(self) -> Fitted:
        """Head and posterior."""


class SearchEncoder(Protocol):
    """Inputs of one kind as an index knows them.

    An index has one for its items and one for its queries, which may be the same.
    """

    @property
    def pairs(self) -> PairMoments:
        """Distances between queries and items."""

    @property
    def identity(self) -> str:
        """Identity of what decides distances and uncertainties; another one is refused."""

    @property
    def spherical(self) -> bool:
        """True if covariances are of tangents of the sphere, not of the space around it."""

    @property
    def fitted_rows(self) -> Fingerprints | None:
        """Sorted fingerprints of the inputs of the fit: such queries are warned of."""

    @property
    def rankings(self) -> tuple[str, ...]:
        """Names of the rankings that are available."""

    @property
    def predictive(self) -> VectorMap | None:
        """Map from what is kept of head inputs to predictive vectors; None if there is none."""

    def read(self, name: str, data: Any, labels: Any = None) -> Inputs:
        """Read what a caller passed, once; ``name`` is the argument, for errors."""

    def all(
        self, inputs: Inputs, *, progress: bool, rows: list[Fingerprints] | None = None
    ) -> tuple[Encoded, list[Any]]:
        """Encode all inputs, and return the labels of batches that came with any."""


Encoders = tuple[SearchEncoder, SearchEncoder]
"""Encoder of the items, and of the queries."""


class SearchableEmbedder(Protocol):
    """Embedder with encoders of its own, one for items and one for queries."""

    def search_encoders(self) -> Sequence[Encoders]:
        """Return all pairs of encoders, of items and of queries."""
