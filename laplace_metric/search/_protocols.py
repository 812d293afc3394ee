"""Requirements of an index: a fitted model, encoders of items and queries, maps to vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric.errors import InputError
from laplace_metric.inputs import Inputs
from laplace_metric.laplace import Fitted
from laplace_metric.laplace._earlier_layer import EarlierLayer
from laplace_metric.models._fingerprints import Fingerprints
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._pair_distances import PairMoments


class FittedEmbedder(Protocol):
    """A model and the posterior over its head: what a search needs of ``LaplaceEmbedder``."""

    @property
    def model(self) -> nn.Module:
        """Inputs -> [B, Z]."""

    @property
    def fitted_(self) -> Fitted:
        """Head and posterior."""


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

    @property
    def spherical(self) -> bool:
        """True if vectors have length 1, so that their distances depend on the centre."""

    @property
    def centre(self) -> Float[Tensor, " A"] | None:
        """Head input about which vectors are taken; None: 0."""

    @property
    def takes_priors(self) -> bool:
        """True if there is a map of any prior precision."""

    def with_prior(self, prior: float) -> VectorMap:
        """Return the map under a prior precision, in units of the mean one that data add."""

    def about(self, centre: Float[Tensor, " A"] | None) -> VectorMap:
        """Return the map about a head input; None: about 0."""

    def as_directions(self) -> VectorMap:
        """Return the map whose vectors have length 1."""

    def with_columns(self, columns: Int[Tensor, " r"]) -> VectorMap:
        """Keep these coordinates."""

    def of_rank(
        self, second_moments: Float[Tensor, " A"], rank: int | None, kept: float
    ) -> VectorMap:
        """Keep the coordinates that matter most."""

    def grams(self, x: Float[Tensor, "n A"]) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
        """Return inner products of the means, and of what the posterior adds."""

    def lengths(self, x: Float[Tensor, "N A"]) -> tuple[float, float, Tensor]:
        """Return squared lengths of mean and posterior, and mean squares of the inputs [A]."""

    def __call__(self, x: Float[Tensor, "N A"], factor: float = 1.0) -> Float[Tensor, "N d"]:
        """Return predictive vectors, at a temperature in units of their own."""


class Refitted(NamedTuple):
    """Map of another fit, and head inputs [m, A] as it sees them."""

    vectors: VectorMap
    seen: Tensor


class SearchEncoder(Protocol):
    """Inputs of one kind as an index knows them.

    An index has one for its items and one for its queries, which may be the same.
    """

    @property
    def device(self) -> torch.device:
        """Device on which embeddings are given."""

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
    def fitted_classes(self) -> int | None:
        """Number of classes of the fit that epistemic numbers know; None: not of one fit."""

    @property
    def rankings(self) -> tuple[str, ...]:
        """Names of the rankings that are available."""

    @property
    def predictive(self) -> VectorMap | None:
        """Map from what is kept of head inputs to predictive vectors; None if there is none."""

    @property
    def earlier(self) -> Mapping[str, slice]:
        """Columns of ``Encoded.earlier`` of each layer that ``exploring`` reads; the last first."""

    def exploring(self, names: Sequence[str] | None = None) -> SearchEncoder:
        """Return the encoder that also reads the inputs of earlier layers.

        It is this encoder itself where none can be read.

        Parameters
        ----------
        names : sequence of str or None
            Names of the layers. None, the default: the last ones before the head.
        """

    def with_layer(self, layer: EarlierLayer | None) -> SearchEncoder:
        """Return the encoder that also gives the unit vectors of one layer; None: of none."""

    def refitted(
        self,
        items: Float[Tensor, "n A"],
        codes: Int[Tensor, " n"],
        others: Float[Tensor, "m A"],
    ) -> Refitted | None:
        """Return the map of a fit to some items, and others as it sees them.

        None where another fit cannot be made, or where few of the others were in that of this
        encoder: then its own map is as good on them as on new ones.

        Parameters
        ----------
        items : Tensor [n, A]
            Head inputs of the items, as an index keeps them.
        codes : Tensor [n]
            Classes of these items.
        others : Tensor [m, A]
            Head inputs of other items.
        """

    def read(self, name: str, data: Any, labels: Any = None) -> Inputs:
        """Read what a caller passed, once; ``name`` is the argument, for errors."""

    def all(
        self, inputs: Inputs, *, progress: bool, rows: list[Fingerprints] | None = None
    ) -> tuple[Encoded, list[Any]]:
        """Encode all inputs, and return the labels of batches that came with any."""


class LastLayerAlone:
    """Defaults of an encoder that has one fit, and reads no layer but the last."""

    def refitted(
        self,
        items: Float[Tensor, "n A"],
        codes: Int[Tensor, " n"],
        others: Float[Tensor, "m A"],
    ) -> Refitted | None:
        """Return None: there is no other fit."""
        return None

    @property
    def fitted_classes(self) -> int | None:
        """Number of classes of the fit that epistemic numbers know; None: not of one fit."""
        return None

    @property
    def earlier(self) -> Mapping[str, slice]:
        """Columns of ``Encoded.earlier`` of each layer that is read: none."""
        return {}

    def exploring(self, names: Sequence[str] | None = None) -> Any:
        """Return this encoder: it reads no earlier layer."""
        return self

    def with_layer(self, layer: EarlierLayer | None) -> Any:
        """Return this encoder, for None.

        Raises
        ------
        InputError
            For a layer.
        """
        if layer is not None:
            raise InputError(f"layer={layer.name!r}: this encoder reads no earlier layers.")
        return self


Encoders = tuple[SearchEncoder, SearchEncoder]
"""Encoder of the items, and of the queries."""


class SearchableEmbedder(Protocol):
    """Embedder with encoders of its own, one for items and one for queries."""

    def search_encoders(self) -> Sequence[Encoders]:
        """Return all pairs of encoders, of items and of queries."""
