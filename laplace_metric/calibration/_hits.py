"""Hits of a search, which of them are a match, and the features of each pair.

What the labels of the nearest items say of a query: a vote of V = 20.

With d_j the distance of the j-th neighbour, a the least and b the largest of them, and l_j its
label (an engine may rank by something else than this distance, so that d_1 need not be the least),

    w_j        = exp(-(d_j^2 - a^2) / (b^2 - a^2)), divided by their sum
    p_c        = sum_{j : l_j = c} w_j                   kernel label posterior (Kotelevskii et al.
                                                         2022, NUQ), one scale a query
    ambiguity  = -sum_c p_c log p_c                      in nats, between 0 and log V
    share_i    = #{j : l_j = l_i} / V
    weighted_i = p of l_i
    ratio_i    = d_i / (d_i + min{d_j : l_j != l_i})     in [0, 1]; after the ratio test of Lowe
                                                         2004, with b where all labels agree

The last three are evidence that neighbour i shares the query's label. They also stand for
neighbours beyond V, which have no vote.

Formulas here and in ``_probability`` take NumPy arrays, or the tensors that an exported graph is
traced from (``namespace``); sums run over the last axis, so that a query does not depend on the
others of its batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from laplace_metric.errors import NonFiniteError

FEATURES = (
    *("distance", "spread", "rank"),
    *("share", "weighted", "ratio", "ambiguity", "epistemic", "class_model"),
)
FEATURE_SETS: dict[str, list[int]] = {
    "distance": [0, 2],
    "all": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "portable": [0, 2, 3, 4, 5, 6, 7],
}
"""What a probability may use: distance and rank, or everything.

"portable" is everything but what no other engine knows: the deviation of a distance, and what the
class model of the gallery says.
"""
VOTES = 20
ROUNDING = 1e-12
"""Ambiguity, in nats, that is none."""
BLOCK_CELLS = 2**22
"""Of (query, neighbour, vote) triples that are compared at once."""
Rows = npt.NDArray[np.int_] | npt.NDArray[np.bool_] | slice


def namespace(array: Any) -> Any:
    """Return the module of an array's functions: NumPy, or torch where it is a tensor."""
    return np if isinstance(array, (np.ndarray, np.generic)) else sys.modules["torch"]


@dataclass(frozen=True)
class LabelVotes:
    """The evidence of Q queries and their K neighbours.

    Parameters
    ----------
    labels : [Q, K]
        Codes of the neighbours' labels, -1 where there is no neighbour.
    share, weighted, ratio : [Q, K], in [0, 1]
    ambiguity : [Q]
    class_odds : [Q, K] or None
        Log odds of each neighbour's label by the class model of the gallery; None without one.
    """

    labels: Int[np.ndarray, "Q K"]
    share: Float[np.ndarray, "Q K"]
    weighted: Float[np.ndarray, "Q K"]
    ratio: Float[np.ndarray, "Q K"]
    ambiguity: Float[np.ndarray, " Q"]
    class_odds: Float[np.ndarray, "Q K"] | None = None

    @classmethod
    def of(cls, distance: Float[np.ndarray, "Q K"], labels: Int[np.ndarray, "Q K"]) -> LabelVotes:
        """Compute the evidence from distances and label codes.

        Parameters
        ----------
        distance : [Q, K]
            Distances in the order of the search, infinite where there is no neighbour. The first
            20 vote, whether or not they are sorted by this distance.
        labels : [Q, K]
            Codes of the neighbours' labels.

        Raises
        ------
        NonFiniteError
            For NaN among the distances.

        Examples
        --------
        >>> votes = LabelVotes.of(np.array([[1.0, 2.0, 2.0]]), np.array([[0, 1, 1]]))
        >>> votes.share.round(4), votes.ambiguity.round(4)
        (array([[0.3333, 0.6667, 0.6667]]), array([0.6815]))
        """
        distance = distance.astype(np.float64, copy=False)
        if (rows := np.isnan(distance).any(1)).any():
            raise NonFiniteError(
                f"distance holds NaN in row {rows.argmax()} ({rows.sum():,} rows): pass finite "
                "distances, and inf where there is no neighbour."
            )
        cells = max(1, distance.shape[1] * min(VOTES, distance.shape[1]))
        step = max(1, BLOCK_CELLS // cells)
        parts = [
            label_evidence(distance[i : i + step], labels[i : i + step])
            for i in range(0, max(1, len(distance)), step)
        ]
        share, weighted, ratio, ambiguity = map(np.concatenate, zip(*parts, strict=True))
        return cls(labels, share, weighted, ratio, ambiguity)


def label_evidence(distance: Any, labels: Any) -> tuple[Any, Any, Any, Any]:
    """Share, weighted, ratio [Q, K] and ambiguity [Q]; float64 distances, any codes.

    The first ``VOTES`` neighbours vote, in any order. NaN gives NaN.
    """
    xp = namespace(distance)
    exists = ~xp.isinf(distance)
    near = xp.where(exists, distance, 0.0)
    voters, votes = near[:, :VOTES], exists[:, :VOTES]
    weight = _weights(voters, votes)
    agree = (labels[:, :, None] == labels[:, None, :VOTES]) & votes[:, None]  # [Q, K, V]
    share = (agree * xp.ones_like(weight)[:, None]).sum(2) / votes.sum(1)[:, None].clip(1)
    weighted = (agree * weight[:, None]).sum(2)
    others = xp.where(agree | ~votes[:, None], xp.inf, voters[:, None])
    other, last = xp.amin(others, 2), xp.amax(voters, 1)[:, None]
    other = xp.where(xp.isfinite(other), other, last)  # infinite if all agree
    both = near + other
    ratio = xp.where(both == 0, 0.5, near / xp.where(both == 0, 1.0, both))
    ambiguity = -(weight * xp.log(_or_one(weighted[:, :VOTES]))).sum(1)
    # where all agree it is 0, and its rounding would have a rank
    ambiguity = xp.where(ambiguity <= ROUNDING, 0.0, ambiguity)
    return share, weighted, xp.where(exists, ratio, 1.0), ambiguity


def _weights(voters: Any, exists: Any) -> Any:
    """w [Q, V]; 0 where there is no neighbour, equal where all are equally far."""
    xp, squared = namespace(voters), voters * voters
    least = xp.amin(xp.where(exists, squared, xp.inf), 1)[:, None]  # a ranking may put it anywhere
    excess = xp.where(exists, squared - least, 0.0)
    reach = xp.amax(excess, 1)[:, None]
    falling = xp.where(reach <= 0, 1.0, xp.exp(-excess / _or_one(reach)))
    weight = xp.where(exists, falling, 0.0)
    return weight / _or_one(weight.sum(1)[:, None])


def _or_one(x: Any) -> Any:
    """x, and 1 where there is nothing; a graph has no float64 smaller than float32's."""
    return namespace(x).where(x > 0, x, 1.0)


@dataclass(frozen=True)
class SearchHits:
    """k neighbours of Q queries, as an engine and the posterior know them.

    Parameters
    ----------
    positions : [Q, k]
        Rows of the index, -1 where an approximate engine found fewer.
    distance : [Q, k]
        Euclidean distance between the mean embeddings, as any engine has it.
    distance_sd : [Q, k]
        Its standard deviation under the weights that both share; infinite where there is no
        neighbour.
    uncertainty : [Q] or None
        Trace of the covariance of each query, no evidence of a match; None where nobody asks.
    epistemic : [Q]
        How little the fit set determines each query; larger = less.
    votes : LabelVotes or None
        What the labels of the nearest items say; None without labels.
    """

    positions: Int[np.ndarray, "Q k"]
    distance: Float[np.ndarray, "Q k"]
    distance_sd: Float[np.ndarray, "Q k"]
    uncertainty: Float[np.ndarray, " Q"] | None
    epistemic: Float[np.ndarray, " Q"]
    votes: LabelVotes | None = None

    @property
    def voted(self) -> LabelVotes:
        """``votes`` of an index that has labels."""
        assert self.votes is not None
        return self.votes

    def nearest(self, k: int) -> SearchHits:
        """Return the first k hits of each query."""

        def first(values: Any) -> Any:
            return values[:, :k] if values.ndim == 2 else values

        return mapped_arrays(self, first)

    def take(self, rows: Rows) -> SearchHits:
        """Return the hits of some queries."""
        return mapped_arrays(self, lambda values: values[rows])


@dataclass(frozen=True)
class LabelledHits:
    """Queries with known matches among their neighbours.

    Parameters
    ----------
    hits : SearchHits
        Of [Q, depth] neighbours.
    match : [Q, depth]
        Whether they are a match: have the query's label, or are said to be one.
    known : [Q]
        Whether any item of the index is a match of the query.
    codes : [Q] or None
        Place of the query's label in ``classes``, -1 if the index does not have it; None where
        matches are said rather than labelled.
    classes : [C] whole numbers or strings, or None
        Sorted labels of the index; the votes of ``hits`` have the same codes.
    """

    hits: SearchHits
    match: Bool[np.ndarray, "Q depth"]
    known: Bool[np.ndarray, " Q"]
    codes: Int[np.ndarray, " Q"] | None = None
    classes: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.match)

    def take(self, rows: Rows) -> LabelledHits:
        """Return some queries."""
        taken = mapped_arrays(replace(self, classes=None), lambda values: values[rows])
        return replace(taken, classes=self.classes)

    @classmethod
    def concatenate(cls, parts: Sequence[LabelledHits]) -> LabelledHits:
        """Queries of one index, or of some whose positions and codes mean the same."""
        together: LabelledHits = joined_arrays([replace(part, classes=None) for part in parts])
        return replace(together, classes=parts[0].classes)


def mapped_arrays(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same value with each of its arrays changed, those of values in it, too."""
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    changed = {
        name: change(part) if isinstance(part, np.ndarray) else part and mapped_arrays(part, change)
        for name, part in parts.items()
    }
    return replace(value, **changed)


def joined_arrays(values: Sequence[Any]) -> Any:
    """Return one value of the arrays of all, one behind the other."""
    if values[0] is None:
        return None
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    names = [field.name for field in fields(values[0])]
    columns = {name: joined_arrays([getattr(value, name) for value in values]) for name in names}
    return replace(values[0], **columns)


@dataclass(frozen=True)
class PairFeatures:
    """Features of (query, neighbour) pairs.

    Parameters
    ----------
    values : [Q, k, F], float64
        ``FEATURES``: the distance of the means; the logarithms of its standard deviation and of the
        neighbour's rank; what the labels of ``VOTES`` neighbours
        say (``LabelVotes``; 0 without labels); the query's epistemic number; the log odds of
        the neighbour's label by the class model (0 without).
    exists : [Q, k]
        Whether there is a neighbour.
    """

    values: Float[np.ndarray, "Q k F"]
    exists: Bool[np.ndarray, "Q k"]

    @classmethod
    def of(cls, hits: SearchHits) -> PairFeatures:
        """Compute the features of every hit.

        Raises
        ------
        NonFiniteError
            For NaN among them, which would be no probability.
        """
        with np.errstate(divide="ignore"):  # log 0 of what is certain, which a score bounds
            values, exists = pair_features(hits)
        if (missing := np.isnan(values)).any():
            query, _, feature = np.argwhere(missing)[0]
            rows = int(missing.any((1, 2)).sum())
            raise NonFiniteError(
                f"evidence {FEATURES[feature]!r} of query {query} is NaN ({rows:,} queries): check "
                "the distances, their deviations and the epistemic numbers of these queries."
            )
        return cls(values, exists)

    def take(self, k: int) -> PairFeatures:
        """Return the features of the k nearest neighbours."""
        return PairFeatures(self.values[:, :k], self.exists[:, :k])


def pair_features(hits: SearchHits) -> tuple[Any, Any]:
    """Values [Q, k, F] and which pairs exist [Q, k], of arrays or of tensors."""
    xp, votes = namespace(hits.distance), hits.votes
    none = xp.zeros_like(hits.distance)
    rank = xp.ones_like(hits.distance).cumsum(1)
    columns = [hits.distance, xp.log(hits.distance_sd), xp.log(rank)]
    if votes is None:
        columns += [none] * 4
    else:
        columns += [votes.share, votes.weighted, votes.ratio, votes.ambiguity[:, None] + none]
    columns.append(hits.epistemic[:, None] + none)
    columns.append(none if votes is None or votes.class_odds is None else votes.class_odds)
    exists = hits.positions >= 0
    return xp.where(exists[..., None], xp.stack(columns, -1), 0.0), exists


def query_statistics(hits: SearchHits) -> Any:
    """Compute statistics [Q, 3] that are larger for queries unlike any before.

    The distance of the nearest item, the query's epistemic number, and the ambiguity of its
    neighbours' labels (0 without labels).
    """
    xp = namespace(hits.distance)
    ambiguity = xp.zeros_like(hits.epistemic) if hits.votes is None else hits.votes.ambiguity
    return xp.stack([xp.amin(hits.distance, 1), hits.epistemic, ambiguity], 1)
