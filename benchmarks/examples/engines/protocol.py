"""What an engine keeps of an item and tells of a neighbour, and what a calibration makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from benchmarks.examples.engines.distances import of_means
from laplace_metric import Embedding
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError, NonFiniteError, NotFittedError
from laplace_metric.search import Calibration, Verdict, gallery_vectors, moments, query_vectors

Array = npt.NDArray[Any]
METRICS = ("euclidean", "cosine")
"""Of the engines; "cosine" for directions, where a collection has it already."""
RANKINGS = ("mean", "expected")
NO_ITEM = -1


@dataclass(frozen=True)
class StoredItems:
    """N items as an engine keeps them.

    Parameters
    ----------
    ids : [N] int64
        Different ones, from 0.
    vectors : [N, d] float32
        Mean embeddings, or with the one coordinate more to rank by expected distance.
    labels : [N] whole numbers or strings
    epistemic : [N]
    spread : [N]
        The coordinate ``s`` of ``laplace_metric.search.moments``; the squared deviation of an item
        from its mean is ``s^2``.

    Raises
    ------
    InputError
        For other shapes, ids that occur twice, labels that are neither.
    NonFiniteError
        For NaN and infinity.
    """

    ids: Array
    vectors: Array
    labels: Array
    epistemic: Array
    spread: Array

    def __post_init__(self) -> None:
        for name in ("ids", "labels", "epistemic", "spread"):
            if getattr(self, name).shape != (len(self.vectors),):
                shape = getattr(self, name).shape
                raise InputError(f"{name} has shape {shape}: pass one an item, {len(self)}.")
        for name in ("vectors", "epistemic", "spread"):
            if not np.isfinite(getattr(self, name)).all():
                raise NonFiniteError(f"{name} holds NaN or infinity: check those items.")
        if self.ids.dtype != np.int64 or len(np.unique(self.ids)) != len(self):
            raise InputError("ids are no different int64 numbers: pass one of its own an item.")
        if self.labels.dtype.kind not in "iuU":
            raise InputError(f"labels are {self.labels.dtype}: pass whole numbers or strings.")

    @classmethod
    def of(
        cls,
        embedding: Embedding,
        labels: Any,
        ids: Any = None,
        *,
        spherical: bool,
        rank_by: str = "mean",
    ) -> StoredItems:
        """Of embeddings [N, Z], as ``embedder.spherical`` says.

        Parameters
        ----------
        ids : [N] or None
            None: counted from 0.
        rank_by : "mean" | "expected"
            The distance that the engine computes, as for ``embedder.index``.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(40, 3), torch.arange(40) % 4
        >>> e = LaplaceEmbedder.from_embeddings(x, y)(x)
        >>> StoredItems.of(e, y, spherical=True).vectors.shape
        (40, 3)
        >>> StoredItems.of(e, y, spherical=True, rank_by="expected").vectors.shape
        (40, 4)
        """
        mean, trace = embedding.mean, embedding.uncertainty
        vectors = mean
        if check_name("rank_by", rank_by, RANKINGS) == "expected":
            vectors = gallery_vectors(mean, trace, spherical=spherical)
        spread = _array(moments(mean, trace, spherical=spherical)[1])
        numbers = np.arange(len(mean)) if ids is None else np.asarray(ids)
        named = np.asarray(labels)
        return cls(
            numbers.astype(np.int64),
            np.ascontiguousarray(_array(vectors), np.float32),
            named.astype(str) if named.dtype == object else named,
            epistemic_of(embedding).astype(np.float64),
            spread.astype(np.float64),
        )

    def __len__(self) -> int:
        return len(self.vectors)

    def batches(self, size: int) -> Iterator[StoredItems]:
        """In order, ``size`` at a time."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield StoredItems(*(value[part] for value in vars(self).values()))

    def rows(self) -> Iterator[tuple[int, int | str, float, float, Array]]:
        """``(id, label, epistemic, spread, vector [d])`` of each."""
        columns = (self.ids, self.labels, self.epistemic, self.spread)
        yield from zip(*(column.tolist() for column in columns), self.vectors, strict=True)


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


def vectors_of(queries: Embedding, *, spherical: bool, rank_by: str = "mean") -> Array:
    """What to ask an engine for: float32 [Q, d], as the vectors of ``StoredItems.of``."""
    vectors = queries.mean
    if check_name("rank_by", rank_by, RANKINGS) == "expected":
        vectors = query_vectors(vectors, queries.uncertainty, spherical=spherical)
    return np.ascontiguousarray(_array(vectors), np.float32)


def judged(
    calibration: Calibration,
    found: Neighbours,
    queries: Embedding,
    *,
    spherical: bool,
    rank_by: str = "mean",
    alpha: float = 0.05,
) -> Verdict:
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
        s = _array(moments(queries.mean, queries.uncertainty, spherical=spherical)[1])
        distances = of_means(distances, found.spread, s, spherical=spherical)
    numbers = {"epistemic": epistemic_of(queries), "uncertainty": _array(queries.uncertainty)}
    return calibration.apply(distances, found.labels, alpha=alpha, **numbers)


def epistemic_of(embedding: Embedding) -> Array:
    """[N], as an index has it: the uncertainty where the fit keeps nothing to compare with."""
    try:
        return _array(embedding.epistemic)
    except NotFittedError:
        return _array(embedding.uncertainty)


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


def _array(values: Tensor) -> Array:
    return values.detach().cpu().numpy()
