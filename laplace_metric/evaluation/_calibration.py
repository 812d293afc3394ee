"""Expected calibration error: a confidence of 80 % should be right in 80 % of the cases.

    ECE = sum_b n_b / N |acc_b - conf_b|               (Naeini et al. 2015; Guo et al. 2017)

over bins b of the confidences of N queries. Retrieval has no confidence of its own: here it is the
agreement of the nearest neighbours over sampled embeddings.

Quality of a probability: Brier score, calibration error, reliability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import (
    ArrayLike,
    as_labels,
    as_points,
    as_rates,
    as_scores,
    as_tensor,
    as_vector,
    check_count,
)
from laplace_metric.errors import InputError
from laplace_metric.evaluation._intervals import BootstrapInterval, bootstrap_interval
from laplace_metric.evaluation._ranking import average_ties
from laplace_metric.evaluation._retrieval import nearest_neighbours


@dataclass(frozen=True, repr=False)
class Reliability(Shown):
    """Calibration errors and the reliability curve that they summarise.

    Attributes
    ----------
    ece : float
        Expected calibration error over equally wide bins, in [0, 1].
    adaptive_ece : float
        The same over bins of equally many queries.
    edges : Tensor [B + 1]
        Of the equally wide bins: ``[e_b, e_{b+1})``, the last one closed.
    bin_confidence, bin_accuracy : Tensor [B]
        Means in each bin; NaN where it is empty.
    bin_count : Tensor [B]
        Queries in each bin, int64.
    """

    ece: float
    adaptive_ece: float
    edges: Tensor
    bin_confidence: Tensor
    bin_accuracy: Tensor
    bin_count: Tensor


def expected_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 10
) -> Reliability:
    """Gap between confidence and accuracy, averaged over the queries of each bin.

    The adaptive error (Nixon et al. 2019) has bins of equal size along the sorted confidences,
    sizes differing by one at most; queries of the same confidence share their mean accuracy, so
    that the order of the rows does not matter.

    Parameters
    ----------
    confidence : [N]
        In [0, 1]. Confidence 1 belongs to the last bin.
    correct : [N]
        Whether the prediction is right: booleans, 0 and 1, or rates in [0, 1].
    bins : int

    Returns
    -------
    Reliability

    Raises
    ------
    InputError
        Mismatched lengths, or values outside of [0, 1].
    NonFiniteError
        NaN or infinite values.

    Examples
    --------
    >>> result = expected_calibration_error([0.95, 1.0, 0.35, 0.35], [1, 1, 1, 0])
    >>> round(result.ece, 4), result.bin_count.tolist()
    (0.0875, [0, 0, 0, 2, 0, 0, 0, 0, 0, 2])
    """
    bins = check_count("bins", bins)
    scores = as_vector("confidence", confidence)
    rates = as_rates("confidence", scores, scores, "confidence")
    values = as_rates("correct", correct, scores, "confidence")
    edges = torch.arange(bins + 1, dtype=torch.float64, device=scores.device) / bins
    bin_of = torch.bucketize(scores.contiguous(), edges[1:-1].to(scores.dtype), right=True)
    count, conf, acc, ece = _binned(bin_of, rates, values, bins)
    adaptive = _adaptive_error(rates, values, bins)
    return Reliability(ece, adaptive, edges, conf, acc, count)


def _binned(
    bin_of: Tensor, confidence: Tensor, correct: Tensor, bins: int
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Count, mean confidence and mean accuracy of each bin [B], and their weighted gap."""
    count = torch.bincount(bin_of, minlength=bins)
    conf = torch.zeros(bins, dtype=torch.float64, device=count.device)
    acc = conf.index_add(0, bin_of, correct) / count
    conf = conf.index_add(0, bin_of, confidence) / count
    gap = (count * (acc - conf).abs().nan_to_num()).sum() / len(bin_of)
    return count, conf, acc, float(gap)


def _adaptive_error(confidence: Tensor, correct: Tensor, bins: int) -> float:
    """ECE over bins of equal mass; the first ``N mod bins`` hold one more, as in array_split."""
    size, larger = divmod(len(confidence), bins)
    sizes = torch.full((bins,), size, device=confidence.device)
    sizes[:larger] += 1
    bin_of = torch.arange(bins, device=confidence.device).repeat_interleave(sizes)
    order = confidence.argsort()
    shared = average_ties(confidence, correct)
    return _binned(bin_of, confidence[order], shared[order], bins)[3]


@dataclass(frozen=True, repr=False)
class RetrievalCalibration(Reliability):
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
) -> RetrievalCalibration:
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
    """Mode [Q] of votes [S, Q] over the samples, the smallest among equals, and its share [Q]."""
    from scipy.stats import mode

    found = mode(votes.cpu().numpy(), axis=0)
    label, count = (torch.as_tensor(values, device=votes.device) for values in found)
    return label, count.double() / len(votes)


def _gallery(
    draws: Tensor, labels: Tensor, gallery: ArrayLike | None, gallery_labels: ArrayLike | None
) -> tuple[Sequence[Tensor | None], Tensor]:
    """Gallery of each draw (None: the queries themselves), and its labels [G]."""
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
    """Queries that are the only one of their label."""
    return int((torch.unique(labels, return_counts=True)[1] == 1).sum())


# Quality of a probability: Brier score, calibration error, reliability.


@dataclass(frozen=True, repr=False)
class Quality(Shown):
    """Quality of the match probability of the nearest neighbours of n held-out queries.

    Parameters
    ----------
    brier : BootstrapInterval
        Mean squared gap between probability and match, in [0, 1]; 95 % interval over queries.
    ece : BootstrapInterval
        Expected calibration error over ten bins. Resampling adds noise to its bins, so that the
        interval lies too high where the error is small.
    reliability : Reliability
        For ``plots.reliability_plot``.
    """

    brier: BootstrapInterval
    ece: BootstrapInterval
    reliability: Reliability

    def _sentence(self) -> str:
        return str(self)

    def _shown_rows(self) -> Rows:
        return in_rows({"queries": int(self.reliability.bin_count.sum())}.items())

    def __str__(self) -> str:
        ends = [f"{x.estimate:.3f} [{x.low:.3f}, {x.high:.3f}]" for x in (self.brier, self.ece)]
        return f"Brier score {ends[0]}, ECE {ends[1]}"


def quality(probability: ArrayLike, match: ArrayLike, *, n: int = 500) -> Quality:
    """From probabilities [Q] and whether they were matches [Q]; ``n`` bootstrap resamples.

    Examples
    --------
    >>> import torch
    >>> p = torch.linspace(0, 1, 200)
    >>> measured = quality(p, p > 0.5, n=100)
    >>> round(measured.brier.estimate, 4), round(measured.ece.estimate, 3)
    (0.0829, 0.249)
    """
    p, y = as_scores("probability", probability), as_scores("match", match)

    def ece(p: Tensor, y: Tensor) -> float:
        return expected_calibration_error(p, y).ece

    return Quality(
        bootstrap_interval(_brier, p, y, n=n),
        bootstrap_interval(ece, p, y, n=n),
        expected_calibration_error(p, y),
    )


def _brier(p: Tensor, y: Tensor) -> float:
    return float((p - y).square().mean())
