"""Nearest neighbours, exact: the one place where they are computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric._utils.validation import ArrayLike, as_points, as_tensor, check_count
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.evaluation._reranking import LARGE_K, nearest_rows
from laplace_metric.evaluation._shortlists import block_candidates, faiss_candidates, faiss_fits

# Nearest neighbours: the one place where they are computed.


@dataclass(frozen=True, repr=False)
class Neighbours(Shown):
    """The k nearest gallery items of each query, nearest first.

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
) -> Neighbours:
    """Find the exact Euclidean nearest neighbours, ranked as if distances were known in float64.

    Shortlists come from FAISS where it is installed, the data are float32 on the CPU and k is below
    64, else from blocked matrix products; the answer is the same.

    Parameters
    ----------
    queries : [Q, Z]
        Embeddings of the queries.
    gallery : [G, Z], optional
        Embeddings of the gallery. None, the default, searches among the queries themselves, each
        without itself (leave-one-out): it is left out by its index, never by its rank, which ties
        would move.
    k : int
        Number of neighbours of each query; the excluded item does not count. Default: 1.
    exclude : [Q], optional
        Row of the gallery that each query leaves out (itself, if the gallery holds the queries).
        None, the default: no row.

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
    >>> nearest = nearest_neighbours([[0.0], [1.0], [3.0]], k=2)
    >>> nearest.indices.tolist()
    [[1, 2], [0, 2], [1, 0]]
    >>> nearest.distances.tolist()
    [[1.0, 3.0], [1.0, 2.0], [2.0, 3.0]]
    """
    points, items, excluded = search_problem(queries, gallery, exclude)
    k = check_count("k", k)
    available = len(items) - (excluded is not None)
    if k > available:
        left_out = " besides the excluded one" if excluded is not None else ""
        raise InputError(
            f"k={k} but the gallery has {available} items{left_out}. Ask for at most {available}."
        )
    use_faiss = faiss_fits(points) and k < LARGE_K
    fast = faiss_candidates(items) if use_faiss else block_candidates(items, items.dtype)
    careful = block_candidates(items, torch.float64)
    indices, distances = nearest_rows(points, items, k, fast, careful, excluded)
    distances = distances.to(points.dtype)
    if not bool(distances.isfinite().all()):
        raise NonFiniteError("queries and gallery are too far apart: distances overflow. Rescale.")
    return Neighbours(indices, distances)


def search_problem(
    queries: ArrayLike, gallery: ArrayLike | None, exclude: ArrayLike | None
) -> tuple[Float[Tensor, "Q Z"], Float[Tensor, "G Z"], Int[Tensor, " Q"] | None]:
    """Check and return queries [Q, Z], gallery [G, Z], excluded rows [Q] or None, on one device.

    Raises
    ------
    InputError
        Wrong shapes, or an excluded row without or outside of the gallery.
    NonFiniteError
        NaN or infinity in the embeddings.
    """
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
    if exclude is not None:
        exclude = as_tensor("exclude", exclude)
        if exclude.is_floating_point() or exclude.shape != (len(points),):
            raise InputError(
                f"exclude has shape {tuple(exclude.shape)} and type {exclude.dtype}: "
                f"pass one gallery index for each of the {len(points)} queries."
            )
        if bool((exclude < 0).any()) or bool((exclude >= len(items)).any()):
            raise InputError(
                f"exclude has indices outside of the gallery: pass 0 to {len(items) - 1}."
            )
        exclude = exclude.to(device=points.device, dtype=torch.int64)
    shared = torch.promote_types(points.dtype, items.dtype)
    return points.to(shared), items.to(device=points.device, dtype=shared), exclude
