"""Nearest neighbours: the one place where they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from laplace_metric._utils.validation import ArrayLike, as_points, as_tensor, require_count
from laplace_metric.errors import InputError, NonFiniteError, UnknownNameError
from laplace_metric.evaluation.neighbours._candidates import (
    MatrixDistances,
    faiss_fits,
    faiss_proposer,
    matrix_proposer,
    require_faiss,
)
from laplace_metric.evaluation.neighbours._rerank import (
    DEEP,
    SPARE,
    Stage,
    deep_stage,
    exact_stage,
    row_blocks,
    run_stages,
    shortlist_stage,
)

Backend = Literal["auto", "torch", "faiss"]


@dataclass(frozen=True)
class Neighbours:
    """The k nearest of each query, nearest first.

    Attributes
    ----------
    indices : Tensor [Q, k]
        Rows of the gallery, int64. Among equally distant rows the lower index comes first.
    distances : Tensor [Q, k]
        Euclidean distances, ascending, in the queries' type (half precision: float32).
    """

    indices: Tensor
    distances: Tensor


def nearest_neighbours(
    queries: ArrayLike,
    gallery: ArrayLike | None = None,
    k: int = 1,
    *,
    exclude: ArrayLike | None = None,
    backend: Backend = "auto",
) -> Neighbours:
    """Exact Euclidean nearest neighbours, ranked as if every distance were known in float64.

    Parameters
    ----------
    queries : [Q, Z]
    gallery : [G, Z], optional
        None searches among the queries themselves, each without itself (leave-one-out): the
        query is left out by its index, never by its rank, which ties would move.
    k : int
        Neighbours for each query, the excluded item not counted.
    exclude : [Q], optional
        The gallery row that is no neighbour of each query (itself, in a shared set).
    backend : {"auto", "torch", "faiss"}
        "auto" takes FAISS where it is installed, the data are float32 on the CPU and k is
        below 64, else blocked matrix products. All give the same answer.

    Returns
    -------
    Neighbours

    Raises
    ------
    InputError
        Wrong shapes, an index out of range, or k above the number of gallery items.
    NonFiniteError
        NaN or infinity in the embeddings, or distances beyond the range of the type.

    Examples
    --------
    >>> found = nearest_neighbours([[0.0], [1.0], [3.0]], k=2)
    >>> found.indices.tolist()
    [[1, 2], [0, 2], [1, 0]]
    >>> found.distances.tolist()
    [[1.0, 3.0], [1.0, 2.0], [2.0, 3.0]]
    """
    points, items, excluded = search_problem(queries, gallery, exclude)
    k = require_count("k", k)
    _require_reachable(k, items, excluded)
    if backend not in ("auto", "torch", "faiss"):
        raise UnknownNameError("backend", backend, ("auto", "torch", "faiss"))
    if backend == "faiss":
        require_faiss(points)
    use_faiss = backend == "faiss" or (backend == "auto" and faiss_fits(points) and k < DEEP)
    row_bytes = 8 * max(items.shape[0], (k + SPARE) * items.shape[1])
    indices, distances = run_stages(points, excluded, k, row_bytes, _stages(items, k, use_faiss))
    distances = distances.to(points.dtype)
    if not bool(distances.isfinite().all()):
        raise NonFiniteError("queries and gallery are too far apart: distances overflow. Rescale.")
    return Neighbours(indices, distances)


def nearest_index(queries: Tensor, gallery: Tensor, exclude: Tensor | None = None) -> Tensor:
    """Row of the single nearest gallery item [Q], for the many passes of sampling.

    Takes checked tensors. Twice as fast as ``nearest_neighbours`` because neither distances nor
    exact ties are asked for: items whose squared distances agree to rounding may swap.
    """
    distances = MatrixDistances(gallery, gallery.dtype)
    rows = torch.arange(queries.shape[0], device=queries.device)
    found = torch.empty_like(rows)
    for block in row_blocks(rows, gallery.shape[0] * gallery.element_size()):
        excluded = None if exclude is None else exclude[block]
        found[block] = distances(distances.centred(queries[block]), excluded).argmin(1)
    return found


def _stages(gallery: Tensor, k: int, use_faiss: bool) -> Iterator[Callable[[], Stage]]:
    """From fast to exact: few neighbours from a shortlist, many from a float64 product first."""
    if use_faiss:
        yield lambda: shortlist_stage(gallery, k, faiss_proposer(gallery))
    elif k < DEEP:
        yield lambda: shortlist_stage(gallery, k, matrix_proposer(gallery, gallery.dtype))
    else:
        yield lambda: deep_stage(gallery, k, matrix_proposer(gallery, torch.float64))
    if gallery.dtype != torch.float64 or k >= DEEP:
        yield lambda: shortlist_stage(gallery, k, matrix_proposer(gallery, torch.float64))
    yield lambda: exact_stage(gallery, k)


def search_problem(
    queries: ArrayLike, gallery: ArrayLike | None, exclude: ArrayLike | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Checked queries [Q, Z], gallery [G, Z] and excluded rows [Q] or None, on one device."""
    points = as_points("queries", queries)
    if gallery is None:
        if exclude is not None:
            raise InputError("exclude was given without gallery: each query already leaves itself.")
        return points, points, torch.arange(points.shape[0], device=points.device)
    items = as_points("gallery", gallery, "[G, Z]")
    if items.shape[1] != points.shape[1]:
        raise InputError(
            f"gallery has dimension {items.shape[1]} but queries have {points.shape[1]}. "
            "Embed both with the same model."
        )
    shared = torch.promote_types(points.dtype, items.dtype)
    items = items.to(device=points.device, dtype=shared)
    return points.to(shared), items, excluded_rows(exclude, points.shape[0], items)


def excluded_rows(exclude: ArrayLike | None, n_queries: int, gallery: Tensor) -> Tensor | None:
    """Checked indices [Q] of the gallery rows to leave out, or None."""
    if exclude is None:
        return None
    rows = as_tensor("exclude", exclude)
    if rows.is_floating_point() or rows.shape != (n_queries,):
        raise InputError(
            f"exclude has shape {tuple(rows.shape)} and type {rows.dtype}. "
            f"Give one gallery index for each of the {n_queries} queries."
        )
    size = gallery.shape[-2]
    if bool((rows < 0).any()) or bool((rows >= size).any()):
        raise InputError(f"exclude has indices outside of the gallery. Give 0 to {size - 1}.")
    return rows.to(device=gallery.device, dtype=torch.int64)


def _require_reachable(k: int, gallery: Tensor, exclude: Tensor | None) -> None:
    available = gallery.shape[0] - (exclude is not None)
    if k > available:
        left_out = " besides the excluded one" if exclude is not None else ""
        raise InputError(
            f"k={k} but the gallery has {available} items{left_out}. Ask for at most {available}."
        )
