"""Hits of a search, which of them are a match, and the features of each pair.

What the labels of the nearest items say of a query: a vote of V = 20.

With d_1 <= ... <= d_V the distances of the nearest items and l_j their labels,

    w_j        = exp(-(d_j^2 - d_1^2) / (d_V^2 - d_1^2)), divided by their sum
    p_c        = sum_{j : l_j = c} w_j                   kernel label posterior (Kotelevskii et al.
                                                         2022, NUQ), one scale a query
    ambiguity  = -sum_c p_c log p_c                      in nats, between 0 and log V
    share_i    = #{j : l_j = l_i} / V
    weighted_i = p of l_i
    ratio_i    = d_i / (d_i + min{d_j : l_j != l_i})     in [0, 1]; after the ratio test of Lowe
                                                         2004, with d_V where all labels agree

The last three are evidence that neighbour i shares the query's label. They also stand for
neighbours beyond V, which have no vote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.calibration._columns import Column
from laplace_metric.laplace import Distance


@dataclass(frozen=True)
class SearchHits:
    """k neighbours of Q queries, as an engine and the posterior know them.

    Parameters
    ----------
    positions : Tensor [Q, k]
        Rows of the index, -1 where an approximate engine found fewer.
    distance : Tensor [Q, k]
        Euclidean distance between the mean embeddings, as any engine has it.
    squared : Distance [Q, k]
        Mean and variance of the squared distance under the weights that both share.
    trace : Tensor [Q]
        Uncertainty of each query.
    epistemic : Tensor [Q]
        How little the fit set determines each query; larger = less.
    votes : LabelVotes or None
        What the labels of the nearest items say; None without labels.
    """

    positions: Int[Tensor, "Q k"]
    distance: Float[Tensor, "Q k"]
    squared: Distance
    trace: Float[Tensor, " Q"]
    epistemic: Float[Tensor, " Q"]
    votes: LabelVotes | None = None

    @property
    def distance_sd(self) -> Float[Tensor, "Q k"]:
        """Standard deviation of the distance [Q, k]: ``sd(d^2) / (2 sqrt(E d^2))``.

        The delta method about ``sqrt(E d^2)``: exact to first order where the distance is large
        against its error; for a distance that is all error, in r equal directions, 1 / (8 r) too
        large (a factor 1.17 at r = 1). Infinite where there is no neighbour.
        """
        spread = self.squared.standard_deviation / (2 * self.squared.mean.sqrt())
        return spread.nan_to_num(posinf=torch.inf).masked_fill(self.positions < 0, torch.inf)

    @property
    def voted(self) -> LabelVotes:
        """``votes`` of an index that has labels."""
        assert self.votes is not None
        return self.votes

    def nearest(self, k: int) -> SearchHits:
        """The first k of each query."""
        return self._at((slice(None), slice(k)), slice(None))

    def take(self, rows: Int[Tensor, " n"] | Bool[Tensor, " Q"]) -> SearchHits:
        """Return the hits of some queries."""
        return self._at(rows, rows)

    def _at(self, pairs: Any, rows: Any) -> SearchHits:
        squared = Distance(self.squared.mean[pairs], self.squared.variance[pairs])
        votes = None if self.votes is None else self.votes.at(pairs, rows)
        per_query = self.trace[rows], self.epistemic[rows], votes
        return SearchHits(self.positions[pairs], self.distance[pairs], squared, *per_query)


@dataclass(frozen=True)
class LabelledHits:
    """Queries of which it is known which neighbours are a match.

    Parameters
    ----------
    hits : SearchHits
        Of [Q, depth] neighbours.
    match : Tensor [Q, depth]
        Whether they are a match: have the query's label, or are said to be one.
    known : Tensor [Q]
        Whether any item of the index is a match of the query.
    codes : Tensor [Q] or None
        Place of the query's label in ``classes``, -1 if the index does not have it; None where
        matches are said rather than labelled.
    classes : Column [C] or None
        Sorted labels of the index; the votes of ``hits`` have the same codes.
    """

    hits: SearchHits
    match: Bool[Tensor, "Q depth"]
    known: Bool[Tensor, " Q"]
    codes: Int[Tensor, " Q"] | None = None
    classes: Column | None = None

    def __len__(self) -> int:
        return len(self.match)

    def take(self, rows: Int[Tensor, " n"] | Bool[Tensor, " Q"]) -> LabelledHits:
        """Some queries."""
        codes = None if self.codes is None else self.codes[rows]
        found = self.hits.take(rows), self.match[rows], self.known[rows]
        return LabelledHits(*found, codes, self.classes)

    @classmethod
    def concatenate(cls, parts: Sequence[LabelledHits]) -> LabelledHits:
        """Queries of one index, or of some whose positions and codes mean the same."""

        def cat(read: Callable[[LabelledHits], Tensor]) -> Tensor:
            return torch.cat([read(part) for part in parts])

        first, votes = parts[0], None
        if first.hits.votes is not None:
            names = [f.name for f in fields(LabelVotes)]
            votes = LabelVotes(*(cat(lambda p, n=n: getattr(p.hits.voted, n)) for n in names))  # type: ignore[misc]
        squared = cat(lambda p: p.hits.squared.mean), cat(lambda p: p.hits.squared.variance)
        pairs = cat(lambda p: p.hits.positions), cat(lambda p: p.hits.distance), Distance(*squared)
        hits = SearchHits(
            *pairs, cat(lambda p: p.hits.trace), cat(lambda p: p.hits.epistemic), votes
        )
        codes = None if first.codes is None else cat(lambda p: p.codes)  # type: ignore[arg-type, return-value]
        known = cat(lambda p: p.match), cat(lambda p: p.known)
        return cls(hits, *known, codes, first.classes)


FEATURES = (
    *("distance", "spread", "uncertainty", "rank"),
    *("share", "weighted", "ratio", "ambiguity", "epistemic"),
)
FEATURE_SETS: dict[str, list[int]] = {
    "distance": [0, 3],
    "posterior": [0, 1, 2, 3],
    "labels": [0, 3, 4, 5, 6],
    "all": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "portable": [0, 2, 3, 4, 5, 6, 7, 8],
}
"""What a probability may look at: distance and rank, the posterior, the vote, or everything.

"portable" is everything but the deviation of a distance, which no other engine knows.
"""
BY_DEFAULT = ("distance", "posterior", "labels", "all")
PORTABLE = ("distance", "labels", "portable")
"""Among which a calibration chooses."""
LOGARITHMS = [FEATURES.index(name) for name in ("spread", "uncertainty")]
"""Features that are -inf where a posterior is certain."""
BOUNDED = [FEATURES.index(n) for n in ("rank", "share", "weighted", "ratio", "ambiguity")]
"""Features that cannot run away."""

ROUNDING = 1e-12
"""Ambiguity, in nats, that is none."""


@dataclass(frozen=True)
class PairFeatures:
    """Features of (query, neighbour) pairs.

    Parameters
    ----------
    values : Tensor [Q, k, F], float64
        ``FEATURES``: the distance of the means; the logarithms of its standard deviation, of the
        query's uncertainty and of the neighbour's rank; what the labels of ``VOTES`` neighbours
        say (``LabelVotes``; 0 without labels); the query's epistemic number.
    exists : Tensor [Q, k]
        Whether there is a neighbour.
    """

    values: Float[Tensor, "Q k F"]
    exists: Bool[Tensor, "Q k"]

    @classmethod
    def of(cls, hits: SearchHits) -> PairFeatures:
        """Compute the features of every hit."""
        trace = hits.trace[:, None].expand_as(hits.distance)
        most = hits.distance.shape[1]
        rank = torch.arange(1, most + 1, device=trace.device).double().expand_as(trace)
        columns = [hits.distance, hits.distance_sd.log(), trace.log(), rank.log()]
        columns += _of_labels(hits.votes, torch.zeros_like(trace))
        columns.append(hits.epistemic[:, None].expand_as(trace))
        values = torch.stack([column.double() for column in columns], -1)  # [Q, k, F]
        exists = hits.positions >= 0
        return cls(torch.where(exists[..., None], values, 0.0), exists)

    def take(self, k: int) -> PairFeatures:
        """Return the features of the k nearest neighbours."""
        return PairFeatures(self.values[:, :k], self.exists[:, :k])


def _of_labels(votes: LabelVotes | None, nothing: Tensor) -> list[Tensor]:
    if votes is None:
        return [nothing] * 4
    ambiguity = votes.ambiguity[:, None].expand_as(nothing)
    return [votes.share, votes.weighted, votes.ratio, ambiguity]


def query_statistics(hits: SearchHits) -> Float[Tensor, "Q 3"]:
    """Compute statistics [Q, 3] that are larger for queries unlike any before.

    The distance of the nearest item, the query's epistemic number, and the ambiguity of its
    neighbours' labels (0 without labels).
    """
    votes = hits.votes
    ambiguity = torch.zeros_like(hits.trace) if votes is None else votes.ambiguity
    columns = [hits.distance.amin(1), hits.epistemic, ambiguity]
    return without_rounding(torch.stack([column.double() for column in columns], 1))


def without_rounding(statistics: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
    """With no ambiguity where all neighbours agree: its rounding, 1e-16, would have a rank."""
    distance, epistemic, ambiguity = statistics.unbind(1)
    ambiguity = torch.where(ambiguity > ROUNDING, ambiguity, 0.0)
    return torch.stack([distance, epistemic, ambiguity], 1)


VOTES = 20
BLOCK_CELLS = 2**24
"""Of (query, neighbour, vote) triples that are compared at once."""


@dataclass(frozen=True)
class LabelVotes:
    """The evidence of Q queries and their K neighbours, float64.

    Parameters
    ----------
    labels : Tensor [Q, K]
        Codes of the neighbours' labels, -1 where there is no neighbour.
    share, weighted, ratio : Tensor [Q, K], in [0, 1]
    ambiguity : Tensor [Q]
    """

    labels: Int[Tensor, "Q K"]
    share: Float[Tensor, "Q K"]
    weighted: Float[Tensor, "Q K"]
    ratio: Float[Tensor, "Q K"]
    ambiguity: Float[Tensor, " Q"]

    @classmethod
    def of(cls, distance: Float[Tensor, "Q K"], labels: Int[Tensor, "Q K"]) -> LabelVotes:
        """From distances, nearest first and infinite where there is no neighbour, and label codes.

        Examples
        --------
        >>> votes = LabelVotes.of(torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[0, 1, 1]]))
        >>> votes.share, votes.ambiguity
        (tensor([[0.3333, 0.6667, 0.6667]], dtype=torch.float64), tensor([0.6815], \
dtype=torch.float64))
        """
        cells = max(1, distance.shape[1] * min(VOTES, distance.shape[1]))
        step = max(1, BLOCK_CELLS // cells)
        parts = [
            _evidence(distance[i : i + step].double(), labels[i : i + step])
            for i in range(0, max(1, len(distance)), step)
        ]
        share, weighted, ratio, ambiguity = map(torch.cat, zip(*parts, strict=True))
        return cls(labels, share, weighted, ratio, ambiguity)

    @classmethod
    def in_one_block(cls, distance: Float[Tensor, "Q K"], labels: Int[Tensor, "Q K"]) -> LabelVotes:
        """The same, of any Q: what a graph is traced from."""
        return cls(labels, *_evidence(distance.double(), labels))

    def at(self, pairs: Any, rows: Any) -> LabelVotes:
        """Return the votes of some ``pairs`` (index of [Q, K]) and ``rows`` (of [Q])."""
        labels, share, weighted = self.labels[pairs], self.share[pairs], self.weighted[pairs]
        return LabelVotes(labels, share, weighted, self.ratio[pairs], self.ambiguity[rows])


def _evidence(distance: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    voters, exists = distance[:, :VOTES], distance[:, :VOTES].isfinite()
    weight = _weights(voters, exists)
    agree = (labels[:, :, None] == labels[:, None, :VOTES]) & exists[:, None]  # [Q, K, V]
    share = agree.double().sum(2) / exists.sum(1, keepdim=True).clamp_min(1)
    weighted = (agree * weight[:, None]).sum(2)
    last = voters.masked_fill(~exists, 0).amax(1, keepdim=True)
    other = voters[:, None].masked_fill(agree, torch.inf).amin(2)  # infinite if all agree
    other = torch.where(other.isfinite(), other, last)
    both = distance + other
    ratio = torch.where(both > 0, distance / both, 0.5).nan_to_num(1.0)
    ambiguity = -(weight * _or_one(weighted[:, :VOTES]).log()).sum(1)
    return share, weighted, ratio, ambiguity.abs()  # never below 0 but by rounding


def _weights(voters: Tensor, exists: Tensor) -> Tensor:
    """w [Q, V]; 0 where there is no neighbour, equal where all are equally far."""
    squared = voters.masked_fill(~exists, 0).square()
    excess = squared - squared[:, :1]
    reach = excess.amax(1, keepdim=True)
    falling = torch.where(reach > 0, (-excess / _or_one(reach)).exp(), 1.0)
    weight = falling.masked_fill(~exists, 0)
    return weight / _or_one(weight.sum(1, keepdim=True))


def _or_one(x: Tensor) -> Tensor:
    """x, and 1 where there is nothing; a graph has no float64 smaller than float32's."""
    return torch.where(x > 0, x, 1.0)
