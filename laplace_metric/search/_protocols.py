"""What an index needs: of a fitted model, and of what encodes its items and its queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from laplace_metric.laplace import Fitted
from laplace_metric.models.features import Fingerprints
from laplace_metric.search._items import Encoded
from laplace_metric.search._neighbours import PairMoments


class FittedEmbedder(Protocol):
    """A model and the posterior over its head: what a search needs of ``LaplaceEmbedder``."""

    @property
    def model(self) -> nn.Module:
        """Inputs -> [B, Z]."""

    @property
    def fitted_(self) -> Fitted:
        """Head and posterior."""

    @property
    def spherical(self) -> bool:
        """Whether embeddings are directions."""


class SearchEncoder(Protocol):
    """Inputs of one kind as an index knows them.

    An index has one for its items and one for its queries, which may be the same.
    """

    @property
    def pairs(self) -> PairMoments:
        """Distances between queries and items."""

    @property
    def identity(self) -> str:
        """Of what decides uncertainties and distances: an index of another one is refused."""

    @property
    def spherical(self) -> bool:
        """Whether covariances are of tangents of the sphere, not of the space around it."""

    @property
    def fitted_rows(self) -> Fingerprints | None:
        """Sorted fingerprints of the inputs of the fit: such queries are warned of."""

    @property
    def rankings(self) -> tuple[str, ...]:
        """Those of ``RANKINGS`` that there are."""

    def all(
        self,
        name: str,
        inputs: Any,
        *,
        progress: bool,
        rows: list[Fingerprints] | None = None,
    ) -> tuple[Encoded, list[Any]]:
        """Everything that ``inputs`` holds, and the labels of batches that came with any."""


Encoders = tuple[SearchEncoder, SearchEncoder]
"""Of items, and of queries."""


class SearchableEmbedder(Protocol):
    """With encoders of its own, of items and of queries."""

    def search_encoders(self) -> Sequence[Encoders]:
        """Each pair that there is."""
