"""Retrieval quality: recall@k, mAP@k and MAP@R, one definition each.

recall@k = mean of [some of the first k is relevant]
AP@k     = sum_{i<=k} P@i rel_i / min(R, k)                     R relevant items in the gallery
MAP@R    = mean of sum_{i<=R} P@i rel_i / R      (Musgrave, Belongie & Lim 2020, eq. 1-2)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric._utils.validation import ArrayLike, as_labels, check_count
from laplace_metric.errors import InputError, UndefinedMetricWarning, callers_line
from laplace_metric.evaluation._nearest_neighbours import (
    Neighbours,
    nearest_neighbours,
    search_problem,
)


@dataclass(frozen=True, repr=False)
class RetrievalScore(Shown):
    """Retrieval metric, and its value for each query.

    Attributes
    ----------
    value : float
        Mean over the counted queries, in [0, 1]; NaN (with a warning) when none is counted.
    per_query : Tensor [Q]
        Score of each query, float64; NaN for the excluded queries, those without a relevant item in
        the gallery.
    n_queries, n_excluded : int
        Numbers of queries counted and of queries excluded.
    """

    value: float
    per_query: Tensor
    n_queries: int
    n_excluded: int

    @property
    def counted(self) -> Bool[Tensor, " Q"]:
        """True [Q] for queries that are counted: the mask that keeps other scores aligned."""
        return ~self.per_query.isnan()


def recall_at_k(
    query: ArrayLike,
    labels: ArrayLike,
    k: int = 1,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    neighbours: Neighbours | None = None,
) -> RetrievalScore:
    """Compute the share of the queries that have their own label among their k nearest.

    Parameters
    ----------
    query : [Q, Z]
        Embeddings of the queries.
    labels : [Q]
        Integer labels of the queries.
    k : int
        Number of nearest neighbours that count. Default: 1.
    gallery, gallery_labels : [G, Z], [G], optional
        Embeddings and integer labels of the gallery. None, the default, searches among the queries,
        each without itself (by index).
    exclude : [Q], optional
        Gallery row that each query leaves out, when the gallery holds the queries too. None, the
        default: no row.
    neighbours : Neighbours, optional
        Search already made on the same data with at least k neighbours, to save a second one. None,
        the default: search here.

    Returns
    -------
    RetrievalScore
        Queries whose label the gallery lacks are excluded and counted.

    Raises
    ------
    InputError, LabelError, NonFiniteError
        Naming the argument at fault.

    Examples
    --------
    >>> score = recall_at_k([[0.0], [1.0], [5.0], [9.0]], [0, 0, 1, 2])
    >>> score.value, score.n_queries, score.n_excluded
    (1.0, 2, 2)
    """
    k = check_count("k", k)
    hits, n_relevant = _ranked(query, labels, gallery, gallery_labels, exclude, neighbours, k)
    return _score(hits.any(1).double(), n_relevant)


def map_at_k(
    query: ArrayLike,
    labels: ArrayLike,
    k: int = 5,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    neighbours: Neighbours | None = None,
) -> RetrievalScore:
    """Compute the mean average precision of the first k: relevant items that come early count more.

    Parameters, exclusion and errors are those of `recall_at_k`.

    Parameters
    ----------
    query : [Q, Z]
        Embeddings of the queries.
    labels : [Q]
        Integer labels of the queries.
    k : int
        Number of nearest neighbours that count. Default: 5.
    gallery, gallery_labels : [G, Z], [G], optional
        Embeddings and integer labels of the gallery. None, the default, searches among the queries,
        each without itself (by index).
    exclude : [Q], optional
        Gallery row that each query leaves out. None, the default: no row.
    neighbours : Neighbours, optional
        Search already made on the same data with at least k neighbours. None, the default: search
        here.

    Examples
    --------
    >>> map_at_k([[0.0], [1.0], [1.5], [4.0]], [0, 1, 0, 1], k=3).per_query.tolist()
    [0.5, 0.3333333333333333, 0.5, 0.5]
    """
    k = check_count("k", k)
    hits, n_relevant = _ranked(query, labels, gallery, gallery_labels, exclude, neighbours, k)
    return _score(_gains(hits).sum(1) / n_relevant.clamp(max=k), n_relevant)


def map_at_r(
    query: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    neighbours: Neighbours | None = None,
) -> RetrievalScore:
    """Compute MAP@R, the average precision of the first R, with R the number of relevant items.

    Parameters, exclusion and errors are those of `recall_at_k`; ``neighbours`` must reach the
    largest R.

    Parameters
    ----------
    query : [Q, Z]
        Embeddings of the queries.
    labels : [Q]
        Integer labels of the queries.
    gallery, gallery_labels : [G, Z], [G], optional
        Embeddings and integer labels of the gallery. None, the default, searches among the queries,
        each without itself (by index).
    exclude : [Q], optional
        Gallery row that each query leaves out. None, the default: no row.
    neighbours : Neighbours, optional
        Search already made on the same data with at least R neighbours of the largest class. None,
        the default: search here.

    Examples
    --------
    >>> map_at_r([[0.0], [1.0], [1.5], [4.0]], [0, 1, 0, 1]).value
    0.0
    """
    hits, n_relevant = _ranked(query, labels, gallery, gallery_labels, exclude, neighbours, None)
    ranks = torch.arange(hits.shape[1], device=hits.device)
    gains = _gains(hits).masked_fill(ranks >= n_relevant[:, None], 0.0)
    return _score(gains.sum(1) / n_relevant, n_relevant)


def _ranked(
    query: ArrayLike,
    labels: ArrayLike,
    gallery: ArrayLike | None,
    gallery_labels: ArrayLike | None,
    exclude: ArrayLike | None,
    neighbours: Neighbours | None,
    k: int | None,
) -> tuple[Bool[Tensor, "Q k"], Int[Tensor, " Q"]]:
    """Return the relevance of the k nearest (None: the largest R) and R of each query."""
    points, items, excluded = search_problem(query, gallery, exclude)
    query_labels = as_labels("labels", labels, points, "query")
    if gallery is None and gallery_labels is not None:
        raise InputError("gallery_labels was given without gallery: pass both or neither.")
    item_labels = query_labels
    if gallery is not None:
        item_labels = as_labels("gallery_labels", gallery_labels, items, "gallery")
    n_relevant = _count_relevant(query_labels, item_labels, excluded)
    reach = max(int(n_relevant.max()), 1) if k is None else k
    if neighbours is None:
        searched = (None, None) if gallery is None else (items, excluded)
        neighbours = nearest_neighbours(points, searched[0], reach, exclude=searched[1])
    elif neighbours.indices.shape[0] != len(points) or neighbours.indices.shape[1] < reach:
        raise InputError(
            f"neighbours has shape {tuple(neighbours.indices.shape)}: "
            f"pass [{len(points)}, {reach}] or more columns, searched on the same data."
        )
    nearest = neighbours.indices[:, :reach].to(item_labels.device)
    return item_labels[nearest] == query_labels[:, None], n_relevant


def _count_relevant(labels: Tensor, gallery_labels: Tensor, exclude: Tensor | None) -> Tensor:
    """Count the gallery items [Q] with the query's label, without the excluded one."""
    classes, counts = torch.unique(gallery_labels, return_counts=True)
    place = torch.searchsorted(classes, labels).clamp(max=classes.shape[0] - 1)
    same_label = torch.where(classes[place] == labels, counts[place], 0)
    if exclude is None:
        return same_label
    return same_label - (gallery_labels[exclude] == labels).to(same_label.dtype)


def _gains(hits: Tensor) -> Tensor:
    """Return ``P@i rel_i`` [Q, k]: the precision of the first i, at the relevant ones."""
    ranks = torch.arange(1, hits.shape[1] + 1, dtype=torch.float64, device=hits.device)
    return hits.cumsum(1) / ranks * hits


def _score(per_query: Tensor, n_relevant: Tensor) -> RetrievalScore:
    counted = n_relevant > 0
    per_query = per_query.masked_fill(~counted, torch.nan)
    n_queries = int(counted.sum())
    if n_queries == 0:
        message = "no query has a relevant item in the gallery: the retrieval metric is NaN."
        warnings.warn(message, UndefinedMetricWarning, stacklevel=callers_line())
    value = float(per_query[counted].mean())
    return RetrievalScore(value, per_query, n_queries, len(per_query) - n_queries)
