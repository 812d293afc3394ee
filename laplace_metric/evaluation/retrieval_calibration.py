"""Retrieval calibration: confidence from the agreement of nearest neighbours over samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.evaluation.calibration import Reliability, expected_calibration_error
from laplace_metric.evaluation.neighbours import excluded_rows, nearest_index
from laplace_metric.validation import ArrayLike, as_labels, as_points, as_tensor


@dataclass(frozen=True)
class Calibration(Reliability):
    """Calibration of sampled retrieval: a `Reliability`, and what each query was answered.

    Attributes
    ----------
    prediction : Tensor [Q]
        The label most often nearest; among equally frequent ones the smallest.
    confidence : Tensor [Q]
        Share of the samples that voted for it, float64.
    correct : Tensor [Q]
        Whether it is the query's label, bool.
    n_queries, n_unanswerable : int
        Queries, and those among them whose label the gallery lacks. These are kept: they are
        always wrong, and an honest confidence in them is low.
    """

    prediction: Tensor
    confidence: Tensor
    correct: Tensor
    n_queries: int
    n_unanswerable: int


def retrieval_calibration(
    samples: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    bins: int = 10,
) -> Calibration:
    """Calibration error of the vote of nearest neighbours over sampled embeddings.

    For each draw s the nearest gallery item votes with its label; the prediction of a query is
    the mode of its S votes, its confidence the share of the mode.

    Parameters
    ----------
    samples : [S, Q, Z]
        S draws of each query's embedding.
    labels : [Q]
        Integer labels of the queries.
    gallery : [S, G, Z] or [G, Z], optional
        [S, G, Z]: joint draws, the s-th of the queries against the s-th of the gallery, as when
        one draw of the weights embeds both. [G, Z]: query-only draws against a fixed gallery,
        such as the mean embeddings. None: joint draws among the queries, each without itself.
    gallery_labels : [G], with ``gallery``
    exclude : [Q], with ``gallery``
        Gallery row that each query leaves out; ``arange(Q)`` where the gallery is the queries.
    bins : int
        Of the reliability curve.

    Returns
    -------
    Calibration

    Raises
    ------
    InputError, LabelError, NonFiniteError
        Naming the argument at fault.

    Notes
    -----
    Nearest items whose squared distances agree to rounding of the samples' type may swap.

    Examples
    --------
    >>> draws = [[[0.0], [3.0]], [[1.0], [1.2]], [[0.5], [2.5]]]
    >>> result = retrieval_calibration(draws, [0, 1], gallery=[[0.0], [2.0]], gallery_labels=[0, 1])
    >>> result.prediction.tolist(), result.confidence.tolist()
    ([0, 1], [1.0, 1.0])
    """
    draws = as_points("samples", samples, "[S, Q, Z]")
    own = as_labels("labels", labels, draws, "samples")
    others, voters, excluded = _gallery(draws, own, gallery, gallery_labels, exclude)
    votes = torch.stack(
        [voters[nearest_index(q, g, excluded)] for q, g in zip(draws, others, strict=True)]
    )
    prediction, confidence = majority(votes)
    correct = prediction == own
    missing = int((~torch.isin(own, voters)).sum()) if gallery is not None else _lone(own)
    curve = expected_calibration_error(confidence, correct, bins)
    return Calibration(
        **vars(curve),
        prediction=prediction,
        confidence=confidence,
        correct=correct,
        n_queries=len(own),
        n_unanswerable=missing,
    )


def majority(votes: Tensor) -> tuple[Tensor, Tensor]:
    """Mode [Q] of votes [S, Q] over the samples, the smallest among equals, and its share [Q].

    Sorted votes form runs; the first longest run is the smallest of the most frequent labels.
    """
    ordered = votes.sort(dim=0).values
    places = torch.arange(len(votes), device=votes.device)[:, None].expand_as(votes)
    starts = torch.ones_like(votes, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    run_start = torch.where(starts, places, 0).cummax(0).values
    longest = (places - run_start + 1).max(0).values
    end = (places - run_start + 1 == longest).int().argmax(0)
    return ordered.gather(0, end[None])[0], longest.double() / len(votes)


def _gallery(
    draws: Tensor,
    labels: Tensor,
    gallery: ArrayLike | None,
    gallery_labels: ArrayLike | None,
    exclude: ArrayLike | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gallery [S, G, Z] (expanded when fixed), its labels [G] and the excluded rows [Q]."""
    if gallery is None:
        if gallery_labels is not None or exclude is not None:
            raise InputError(
                "gallery_labels or exclude was given without gallery. Give gallery too."
            )
        if draws.shape[1] < 2:
            raise InputError("samples has a single query, which has no neighbour. Give a gallery.")
        return draws, labels, torch.arange(draws.shape[1], device=draws.device)
    joint = as_tensor("gallery", gallery).ndim == 3
    items = as_points("gallery", gallery, "[S, G, Z]" if joint else "[G, Z]").to(draws)
    voters = as_labels("gallery_labels", gallery_labels, items, "gallery")
    if items.shape[-1] != draws.shape[2] or (joint and len(items) != len(draws)):
        raise InputError(
            f"gallery has shape {tuple(items.shape)} but samples {tuple(draws.shape)}. "
            "Give [G, Z], or [S, G, Z] with as many draws."
        )
    excluded = excluded_rows(exclude, draws.shape[1], items)
    if excluded is not None and items.shape[-2] < 2:
        raise InputError("exclude leaves nothing of a gallery of one item.")
    fixed = items if joint else items.expand(len(draws), *items.shape)
    return fixed, voters, excluded


def _lone(labels: Tensor) -> int:
    """Queries that are the only one of their label."""
    return int((torch.unique(labels, return_counts=True)[1] == 1).sum())
