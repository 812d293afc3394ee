"""What an engine tells of a neighbour, and what a calibration makes of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from benchmarks.examples.engines.distances import of_means
from benchmarks.examples.engines.items import (
    RANKINGS,
    Array,
    StoredItems,
    as_array,
    epistemic_of,
)
from laplace_metric import Embedding
from laplace_metric._utils.validation import check_name
from laplace_metric.calibration._assessment import CalibratedHits
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.search._expected_vectors import moments, query_vectors

METRICS = ("euclidean", "cosine")
"""Of the engines; "cosine" for directions, where a collection has it already."""
NO_ITEM = -1

Hit = tuple[int, float, Any, float, float]
"""Id, Euclidean distance of the vectors, label, epistemic, spread of one neighbour."""


@dataclass(frozen=True)
class Neighbours:
    """What an engine found for Q queries, nearest first.

    Parameters
    ----------
    ids : [Q, k]
        -1 where there is no neighbour.
    distances : [Q, k]
        Euclidean, of the vectors; inf where there is no neighbour.
    labels : [Q, k]
    epistemic, spread : [Q, k]
        Of the items; 0 where there is none.
    """

    ids: Array
    distances: Array
    labels: Array
    epistemic: Array
    spread: Array

    @classmethod
    def of(cls, found: Sequence[Sequence[Hit]], k: int) -> Neighbours:
        """From the hits of each query, k or fewer.

        Examples
        --------
        >>> found = Neighbours.of([[(7, 0.5, "cat", 0.1, 0.2)]], 2)
        >>> found.ids.tolist(), found.distances.tolist(), found.labels.tolist()
        ([[7, -1]], [[0.5, inf]], [['cat', '']])
        """
        texts = any(isinstance(hit[2], str) for hits in found for hit in hits)
        nothing: Hit = (NO_ITEM, np.inf, "" if texts else 0, 0.0, 0.0)
        full = [[*hits[:k], *[nothing] * (k - len(hits))] for hits in found]
        columns = [np.array([[hit[i] for hit in hits] for hits in full]) for i in range(5)]
        return cls(*(column.reshape(len(found), k) for column in columns))


class VectorEngine(Protocol):
    """An engine as it is, with items that outlive the process."""

    def store(self, items: StoredItems) -> None:
        """Insert items, or replace those of the same id: what was interrupted can be repeated."""

    def search(self, vectors: Array, k: int) -> Neighbours:
        """The k nearest items of ``vectors`` [Q, d]."""

    def __len__(self) -> int:
        """Number of items."""

    def close(self) -> None:
        """Let go of the connection; the items stay."""


class OfOneWidth(ABC):
    """An engine whose vectors have one width, which is read from it once."""

    _width: int | None = None

    @property
    def dimensions(self) -> int | None:
        """Of the vectors that are there; None before there is a place for any."""
        if self._width is None:
            self._width = self._read_width()
        return self._width

    @abstractmethod
    def _read_width(self) -> int | None:
        """Of the engine itself."""


def vectors_of(queries: Embedding, *, spherical: bool, rank_by: str = "mean") -> Array:
    """What to ask an engine for: float32 [Q, d], as the vectors of ``StoredItems.of``."""
    vectors = queries.mean
    if check_name("rank_by", rank_by, RANKINGS) == "expected":
        vectors = query_vectors(vectors, queries.uncertainty, spherical=spherical)
    return np.ascontiguousarray(as_array(vectors), np.float32)


def judged(
    calibration: Calibration,
    found: Neighbours,
    queries: Embedding,
    *,
    spherical: bool,
    rank_by: str = "mean",
    alpha: float = 0.05,
) -> CalibratedHits:
    """Match probability, answer and "unknown" of what an engine found.

    Parameters
    ----------
    calibration : Calibration
        ``index.calibrate(..., portable=True)`` of an index with the same ``rank_by``.
    found : Neighbours
        Of 20 neighbours or more.
    queries : Embedding
        Of Q queries.
    """
    distances = found.distances
    if rank_by == "expected":
        s = as_array(moments(queries.mean, queries.uncertainty, spherical=spherical)[1])
        distances = of_means(distances, found.spread, s, spherical=spherical)
    return calibration.apply(distances, found.labels, epistemic=epistemic_of(queries), alpha=alpha)


def checked(vectors: Array, dimensions: int, k: int) -> Array:
    """Queries as float32 [Q, d].

    Raises
    ------
    InputError
        For another width than that of the items, and for a k below 1.
    NonFiniteError
        For NaN and infinity.
    """
    asked = np.ascontiguousarray(vectors, np.float32)
    if asked.ndim != 2 or asked.shape[1] != dimensions:
        raise InputError(f"vectors have shape {asked.shape}: items are [N, {dimensions}].")
    if not np.isfinite(asked).all():
        raise NonFiniteError("vectors hold NaN or infinity: check those queries.")
    if k < 1:
        raise InputError(f"k={k}: pass 1 or more.")
    return asked
