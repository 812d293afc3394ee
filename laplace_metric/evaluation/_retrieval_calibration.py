"""Calibration of sampled retrieval.

Retrieval has no confidence of its own: here it is the agreement of the nearest neighbours over
sampled embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.validation import ArrayLike, as_labels, as_points, as_tensor
from laplace_metric.errors import InputError
from laplace_metric.evaluation._nearest_neighbours import nearest_neighbours
from laplace_metric.evaluation._reliability import Reliability, expected_calibration_error


@dataclass(frozen=True, repr=False)
class RetrievalCalibration(Reliability):
    """Calibration of sampled retrieval: a `Reliability`, and the answer to each query.

    Attributes
    ----------
    prediction : Tensor [Q]
        Label that is most often nearest; among equally frequent ones the smallest.
    confidence : Tensor [Q]
        Share of the samples that voted for it, float64.
    correct : Tensor [Q]
        True if it is the label of the query.
    n_queries, n_unanswerable : int
        Number of queries, and of those whose label the gallery lacks. These count: they are
        always wrong, and a calibrated confidence in them is low.
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
) -> RetrievalCalibration:
    """Compute the calibration error of the vote of nearest neighbours over sampled embeddings.

    For each draw s the nearest gallery item votes with its label; the prediction of a query is
    the mode of its S votes, its confidence the share of the mode.

    Parameters
    ----------
    samples : [S, Q, Z]
        Draws of each query's embedding, S of them.
    labels : [Q]
        Integer labels of the queries.
    gallery : [S, G, Z] or [G, Z], optional
        Draws or embeddings of the gallery. [S, G, Z] are joint draws, the s-th of the queries
        against the s-th of the gallery, as when one draw of the weights embeds both. [G, Z] is a
        fixed gallery, such as the mean embeddings, for draws of the queries alone. None, the
        default: joint draws among the queries, each without itself.
    gallery_labels : [G], with ``gallery``
        Integer labels of the gallery. None, the default: there is no ``gallery``.
    exclude : [Q], with ``gallery``
        Gallery row that each query leaves out; ``arange(Q)`` where the gallery is the queries.
        None, the default: no row.
    bins : int
        Number of bins of the reliability curve. Default: 10.

    Returns
    -------
    RetrievalCalibration

    Raises
    ------
    InputError, LabelError, NonFiniteError
        Naming the argument at fault.

    Examples
    --------
    >>> draws = [[[0.0], [3.0]], [[1.0], [1.2]], [[0.5], [2.5]]]
    >>> result = retrieval_calibration(draws, [0, 1], gallery=[[0.0], [2.0]], gallery_labels=[0, 1])
    >>> result.prediction.tolist(), result.confidence.tolist()
    ([0, 1], [1.0, 1.0])
    """
    draws = as_points("samples", samples, "[S, Q, Z]")
    truth = as_labels("labels", labels, draws, "samples")
    items, voters = _gallery(draws, truth, gallery, gallery_labels)
    votes = torch.stack(
        [
            voters[nearest_neighbours(q, g, exclude=exclude).indices[:, 0]]
            for q, g in zip(draws, items, strict=True)
        ]
    )  # [S, Q]
    prediction, confidence = majority(votes)
    correct = prediction == truth
    missing = int((~torch.isin(truth, voters)).sum()) if gallery is not None else _lone(truth)
    curve = expected_calibration_error(confidence, correct, bins)
    return RetrievalCalibration(
        **vars(curve),
        prediction=prediction,
        confidence=confidence,
        correct=correct,
        n_queries=len(truth),
        n_unanswerable=missing,
    )


def majority(votes: Int[Tensor, "S Q"]) -> tuple[Int[Tensor, " Q"], Float[Tensor, " Q"]]:
    """Return the mode [Q] of votes [S, Q] (the smallest among equals), and its share [Q]."""
    from scipy.stats import mode

    found = mode(votes.cpu().numpy(), axis=0)
    label, count = (torch.as_tensor(values, device=votes.device) for values in found)
    return label, count.double() / len(votes)


def _gallery(
    draws: Tensor, labels: Tensor, gallery: ArrayLike | None, gallery_labels: ArrayLike | None
) -> tuple[Sequence[Tensor | None], Tensor]:
    """Return the gallery of each draw (None: the queries themselves), and its labels [G]."""
    if gallery is None:
        if gallery_labels is not None:
            raise InputError("gallery_labels was given without gallery: pass gallery too.")
        if draws.shape[1] < 2:
            raise InputError("samples has a single query, which has no neighbour: pass a gallery.")
        return [None] * len(draws), labels
    joint = as_tensor("gallery", gallery).ndim == 3
    items = as_points("gallery", gallery, "[S, G, Z]" if joint else "[G, Z]").to(draws)
    voters = as_labels("gallery_labels", gallery_labels, items, "gallery")
    if items.shape[-1] != draws.shape[2] or (joint and len(items) != len(draws)):
        raise InputError(
            f"gallery has shape {tuple(items.shape)} but samples {tuple(draws.shape)}: "
            "pass [G, Z], or [S, G, Z] with as many draws."
        )
    return list(items) if joint else [items] * len(draws), voters


def _lone(labels: Tensor) -> int:
    """Count the queries that are the only one of their label."""
    return int((torch.unique(labels, return_counts=True)[1] == 1).sum())
