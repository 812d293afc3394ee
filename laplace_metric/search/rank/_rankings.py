"""What "nearest" means: the vectors of items and queries that an engine compares.

"mean"          distance of the means, as without uncertainty
"expected"      expected distance of independent embeddings: one more coordinate (``moments``)
"shared"        expected distance under shared weights: the means' shortlist, ranked again
"predictive"    expected inner product under shared weights (``PredictiveVectors``)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.validation import (
    check_count,
    check_fraction,
    check_positive,
    check_share,
)
from laplace_metric.errors import InputError
from laplace_metric.io import BELOW_ONE, POSITIVE, saved, unsaved
from laplace_metric.laplace._earlier_layer import EarlierLayer
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._expected_vectors import gallery_vectors, query_vectors
from laplace_metric.search._protocols import VectorMap

AUTO = "auto"
EMPTY: Mapping[str, slice] = MappingProxyType({})
EQUAL = 0.5
"""Weight of an earlier layer that is named without one."""
SOME = 2_000
"""Items whose spread is measured."""
NOISE, WHITENED = 1e6, 1e-4
"""Prior precisions, in units of what the data add, at which the data hardly matter, or alone."""
KEPT = 0.99
"""Share of the squared length of the second part of predictive vectors that is kept."""


class Ranking(ABC):
    """Vectors of items and queries whose Euclidean distance ranks."""

    name: ClassVar[str]
    shortlist: ClassVar[int] = 1
    """Times k: neighbours that are ranked again by their expected distance."""
    measures: ClassVar[bool] = False
    """True if the distance of a hit is that of these vectors, not that of the means."""

    @abstractmethod
    def item_vectors(self, items: Encoded) -> Float[Tensor, "N d"]:
        """Return what the engine stores."""

    @abstractmethod
    def query_vectors(self, queries: Encoded) -> Float[Tensor, "Q d"]:
        """Return the query vectors [Q, d] for the engine."""

    @property
    def stored(self) -> bool:
        """True if the engine's vectors are others than the means, so that a file holds them."""
        return False


@dataclass(frozen=True)
class MeanRanking(Ranking):
    """Ranking by the distance of the means."""

    name: ClassVar[str] = "mean"

    def item_vectors(self, items: Encoded) -> Tensor:
        return items.mean

    def query_vectors(self, queries: Encoded) -> Tensor:
        return queries.mean


@dataclass(frozen=True)
class SharedRanking(MeanRanking):
    """Ranking of the nearest by the means, by the expected distance under shared weights."""

    name: ClassVar[str] = "shared"
    shortlist: ClassVar[int] = 4


@dataclass(frozen=True)
class ExpectedRanking(Ranking):
    """Ranking by the expected distance of independent embeddings.

    Parameters
    ----------
    spherical : bool
        True if embeddings are directions.
    """

    name: ClassVar[str] = "expected"
    spherical: bool

    def item_vectors(self, items: Encoded) -> Tensor:
        return gallery_vectors(items.mean, items.trace, spherical=self.spherical)

    def query_vectors(self, queries: Encoded) -> Tensor:
        return query_vectors(queries.mean, queries.trace, spherical=self.spherical)

    @property
    def stored(self) -> bool:
        return True


@dataclass(frozen=True)
class Predictive:
    """Settings of ``rank_by="predictive"``: the expected inner product under shared weights.

    Parameters
    ----------
    share : float in [0, 1) or None
        Share of the items' squared length that comes from the posterior, which is its temperature
        in units that do not depend on the head; 0 leaves it out. None, the default: the one of .1
        to .97 that finds most first neighbours right, leaving out one item at a time; .5 without
        labels.
    rank : int or None
        Number of coordinates that the posterior adds to the Z of the mean. None, the default: as
        many as keep .99 of its part of the squared length.
    prior : float > 0 or None
        Prior precision, in units of the mean precision that the data add to a weight: 1e6 is noise,
        alike in every direction, and 1e-4 whitens what enters the head. None, the default: chosen
        next to the share; where that is given, or without labels, that of the fit.
    centred : bool or None
        True for cosines about the mean of the items, where embeddings are directions. None, the
        default: chosen next to the share; where that is given, or without labels, False.
    directions : bool or None
        True for cosines where embeddings are compared with their lengths. None, the default: chosen
        next to the share; where that is given, or without labels, False.
    layer : str, bool or None
        Name of an earlier layer of the model, whose input ranks next to the embedding; False for
        none. None, the default: none, or one of the last three before the head, chosen next to the
        share; where that is given, without labels, or for more than 50,000 items, none.
    layer_weight : float in (0, 1) or None
        Weight of the layer's cosine; the predictive vectors have the rest. None, the default: the
        one of .25, .5, .75 and .9 that is chosen next to the share; .5 where that is given.

    Raises
    ------
    InputError
        For a share outside [0, 1), a rank below 1, a prior that is not above 0, ``centred`` or
        ``directions`` that is no flag, a layer that is no name, and a weight outside (0, 1).

    Examples
    --------
    >>> Predictive(share=0.75, layer="fc").layer_weight is None
    True
    """

    share: float | None = None
    rank: int | None = None
    prior: float | None = None
    centred: bool | None = None
    directions: bool | None = None
    layer: str | bool | None = None
    layer_weight: float | None = None

    def __post_init__(self) -> None:
        if self.share is not None:
            check_fraction("Predictive: share", self.share)
        if self.rank is not None:
            check_count("Predictive: rank", self.rank)
        if self.prior is not None:
            check_positive("Predictive: prior", self.prior)
        for name in ("centred", "directions"):
            if (flag := getattr(self, name)) not in (None, True, False):
                raise InputError(f"Predictive: {name}={flag!r}: pass True, False or None.")
        if not isinstance(self.layer, (str, type(None))) and self.layer is not False:
            raise InputError(
                f"Predictive: layer={self.layer!r}: pass the name of a layer, False or None."
            )
        if self.layer_weight is not None:
            check_share("Predictive: layer_weight", self.layer_weight)

    @property
    def layers_read(self) -> Sequence[str] | None:
        """Names of the layers that a choice reads; empty for none, None for those it finds."""
        if isinstance(self.layer, str):
            return [self.layer]
        return None if self.layer is None and self.share is None else ()


@dataclass(frozen=True)
class PredictiveRanking(Ranking):
    """Ranking by the expected inner product under shared weights.

    Parameters
    ----------
    vectors : VectorMap
        Map from what an index stores of head inputs to vectors.
    share : float in [0, 1)
        Share of the items' squared length that comes from the posterior.
    factor : float > 0
        Temperature of this share, in units of that of ``Fitted.predictive_posterior``.
    lost : float in [0, 1)
        Share of the posterior's part of the squared length that is left out.
    prior : float > 0 or None
        Prior precision, in units of what the data add. None, the default: that of the fit.
    gain : tuple of two floats, or None
        Share of items whose nearest other item is of their class, by the means and by this ranking.
        None, the default: it was not measured.
    layer : EarlierLayer or None
        Earlier layer that ranks next to the predictive vectors. None, the default: none.
    directions : bool
        True if vectors have length 1, though embeddings are compared with their lengths. Default:
        False.
    """

    name: ClassVar[str] = "predictive"
    measures: ClassVar[bool] = True
    vectors: VectorMap = unsaved()
    share: float = saved(0, BELOW_ONE)
    factor: float = saved(0)
    lost: float = saved(0, 1)
    prior: float | None = saved(POSITIVE, default=None)
    gain: tuple[float, float] | None = saved(0, 1, default=None)
    layer: EarlierLayer | None = saved(default=None)
    directions: bool = saved(empty=True, default=False)

    @classmethod
    def of(
        cls,
        vectors: VectorMap,
        items: Encoded,
        asked: Predictive,
        earlier: Mapping[str, slice] = EMPTY,
    ) -> PredictiveRanking:
        """Choose the temperature that has the share on the items, and the columns to keep.

        Parameters
        ----------
        vectors : VectorMap
            Map from head inputs to predictive vectors.
        items : Encoded
            Items, with the rows of earlier layers where ``asked`` names one.
        asked : Predictive
            Settings with a share.
        earlier : mapping of name to slice
            Columns of ``items.earlier``, by layer. Default: there are none.

        Raises
        ------
        InputError
            For a prior where the posterior has no other one.
        """
        share, prior = asked.share, asked.prior
        assert share is not None
        if prior is not None and not vectors.takes_priors:
            raise InputError(
                f"Predictive: prior={prior:g} takes a diagonal or a Kronecker posterior: fit with "
                'structure="diag" or "kron".'
            )
        vectors = vectors if prior is None else vectors.with_prior(prior)
        directed = bool(asked.directions) and not vectors.spherical
        vectors = vectors.as_directions() if directed else vectors
        if asked.centred and vectors.spherical:  # distances do not depend on a centre
            vectors = vectors.about(items.basis_inputs.mean(0))
        length, own, squares = vectors.lengths(items.basis_inputs)
        some = vectors.of_rank(squares, asked.rank, KEPT)
        assert some.columns is not None
        if share == 0:
            some = some.with_columns(some.columns[:0])
        assert some.columns is not None
        kept = float((vectors.variances * squares)[some.columns].sum())
        factor = share / (1 - share) * length / own if own > 0 else 0.0
        lost = max(0.0, 1 - kept / own) if own > 0 < share else 0.0  # sums in two orders differ
        made = cls(some, share, factor, lost, prior, directions=directed)
        if not isinstance(asked.layer, str):
            return made
        assert items.earlier is not None
        weight = EQUAL if asked.layer_weight is None else asked.layer_weight
        unit = 1.0 if vectors.spherical else made._spread(items)
        rows = items.earlier[:, earlier[asked.layer]]
        return replace(made, layer=EarlierLayer.of(asked.layer, weight, unit, rows))

    def _spread(self, items: Encoded) -> float:
        """Return the mean squared distance of some items' vectors from their mean."""
        some = items.take(slice(None, None, -(-len(items) // SOME)))
        return float(self.item_vectors(some).var(0, unbiased=False).sum())

    @property
    def settings(self) -> Predictive:
        """Settings with which another index has the same ranking."""
        rank, centred = len(self.columns) or None, self.vectors.centre is not None
        name: str | bool = False if self.layer is None else self.layer.name
        weight = None if self.layer is None else self.layer.weight
        return Predictive(self.share, rank, self.prior, centred, self.directions, name, weight)

    def item_vectors(self, items: Encoded) -> Tensor:
        v = self.vectors(items.basis_inputs, self.factor)
        if self.layer is None:
            return v
        assert items.earlier is not None
        return self.layer.beside(v, items.earlier, spherical=self.vectors.spherical)

    def query_vectors(self, queries: Encoded) -> Tensor:
        return self.item_vectors(queries)

    @property
    def stored(self) -> bool:
        return True

    @property
    def columns(self) -> Int[Tensor, " r"]:
        """Eigenvectors that are kept."""
        assert self.vectors.columns is not None
        return self.vectors.columns

    def __str__(self) -> str:
        """Return one line of a table: what is added to the mean."""
        kind = "posterior" if self.prior is None else f"posterior (prior {self.prior:g})"
        kind = "noise" if self.prior == NOISE else "whitened" if self.prior == WHITENED else kind
        kind += ", directions" if self.directions else ""
        kind += ", centred" if self.vectors.centre is not None else ""
        told = f"{self.share:.0%} {kind}, in {len(self.columns)} numbers ({self.lost:.1%} lost)"
        told = kind.replace("posterior", "means") if self.share == 0 else told
        if self.layer is None:
            return told
        n = self.layer.directions.shape[1]
        return f"{told}; {self.layer.weight:.0%} layer {self.layer.name!r}, in {n} numbers"
