"""Hits of a search, and which of them are a match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from laplace_metric.calibration.labels._votes import LabelVotes

Rows = npt.NDArray[np.int_] | npt.NDArray[np.bool_] | slice


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
        Standard deviation of the distance, under the weights that both points share; infinite where
        there is no neighbour.
    uncertainty : [Q] or None
        Trace of the covariance of each query, which is not used as evidence of a match; None if it
        is not known.
    epistemic : [Q]
        Epistemic number of each query: larger if the fit set determines its embedding less.
    votes : LabelVotes or None
        Vote of the labels of the nearest items. None, the default, without labels.
    """

    positions: Int[np.ndarray, "Q k"]
    distance: Float[np.ndarray, "Q k"]
    distance_sd: Float[np.ndarray, "Q k"]
    uncertainty: Float[np.ndarray, " Q"] | None
    epistemic: Float[np.ndarray, " Q"]
    votes: LabelVotes | None = None

    @property
    def voted(self) -> LabelVotes:
        """Votes of an index that has labels."""
        assert self.votes is not None
        return self.votes

    def nearest(self, k: int) -> SearchHits:
        """Return the first k hits of each query."""
        if k >= self.positions.shape[1]:
            return self

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
        Neighbours [Q, depth] of the queries.
    match : [Q, depth]
        True for each neighbour that is a match: it has the query's label, or is named as one.
    known : [Q]
        True for each query that has a match in the index.
    codes : [Q] or None
        Place of the query's label in ``classes``, -1 if the index does not have it. None, the
        default: matches are named, not labelled.
    classes : [C] whole numbers or strings, or None
        Sorted labels of the index; the votes of ``hits`` have the same codes. None, the default, as
        for ``codes``.
    same : [Q] or None
        Number of each query: equal queries, of which a calibration counts one, have the same. None,
        the default: all differ.
    simulated : [Q] or None
        True for each query that has no match because the items of its class were hidden. None, the
        default: none were.
    """

    hits: SearchHits
    match: Bool[np.ndarray, "Q depth"]
    known: Bool[np.ndarray, " Q"]
    codes: Int[np.ndarray, " Q"] | None = None
    classes: npt.NDArray[Any] | None = None
    same: Int[np.ndarray, " Q"] | None = None
    simulated: Bool[np.ndarray, " Q"] | None = None

    def __len__(self) -> int:
        return len(self.match)

    def take(self, rows: Rows) -> LabelledHits:
        """Return some queries."""
        taken = mapped_arrays(replace(self, classes=None), lambda values: values[rows])
        return replace(taken, classes=self.classes)

    @classmethod
    def concatenate(cls, parts: Sequence[LabelledHits]) -> LabelledHits:
        """Join queries of one index, or of several whose positions, codes and numbers agree."""
        together: LabelledHits = joined_arrays([replace(part, classes=None) for part in parts])
        return replace(together, classes=parts[0].classes)


def mapped_arrays(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same value with each of its arrays changed, those of values in it, too."""
    if value is None or isinstance(value, np.ndarray):
        return value if value is None else change(value)
    # not by ``replace``, which asks for the fields once more: a query does this several times
    return type(value)(*(mapped_arrays(getattr(value, f.name), change) for f in fields(value)))


def joined_arrays(values: Sequence[Any]) -> Any:
    """Return one value of the arrays of all, one behind the other."""
    if values[0] is None:
        return None
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    names = [field.name for field in fields(values[0])]
    columns = {name: joined_arrays([getattr(value, name) for value in values]) for name in names}
    return replace(values[0], **columns)
