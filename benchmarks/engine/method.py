"""One protocol for every uncertainty method: the same queries, other data sets and metrics.

Queries search among themselves, each without itself; the other sets are out of distribution.
Batches are streamed. What stays in memory are the mean embeddings, one uncertainty an input, and
the draws [S, Q, Z] of the calibration.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.statistics import mann_whitney
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric.errors import InputError
from laplace_metric.evaluation._bootstrap import BootstrapInterval, bootstrap_interval
from laplace_metric.evaluation._nearest_neighbours import Neighbours, nearest_neighbours
from laplace_metric.evaluation._retrieval import RetrievalScore, map_at_k, recall_at_k
from laplace_metric.evaluation._retrieval_calibration import (
    RetrievalCalibration,
    retrieval_calibration,
)
from laplace_metric.evaluation._roc import auprc, fpr_at_tpr, r_auroc
from laplace_metric.evaluation._sparsification import Sparsification, sparsification
from laplace_metric.inputs import read_inputs
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._modules import device_of
from laplace_metric.probabilistic_embedder import Draw, ProbabilisticEmbedder

DEPTH = 5
"""Neighbours kept for each query, and the k of mAP@k."""


@dataclass(frozen=True)
class Embedded:
    """Mean embeddings [N, Z], uncertainties [N] and labels [N] of a loader."""

    mean: Tensor
    uncertainty: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Detection:
    """Separation of one out-of-distribution set from the queries by the uncertainty.

    Attributes
    ----------
    uncertainty : Tensor [M]
        Of the out-of-distribution inputs.
    auroc : BootstrapInterval
        With its 95 % interval, resampling both samples.
    auprc, fpr95 : float
        Average precision; share of queries flagged when 95 % of the others are.
    """

    uncertainty: Tensor
    auroc: BootstrapInterval
    auprc: float
    fpr95: float

    def numbers(self) -> dict[str, float | int]:
        """The numbers alone, for JSON."""
        return {
            "auroc": self.auroc.estimate,
            "auroc_low": self.auroc.low,
            "auroc_high": self.auroc.high,
            "auprc": self.auprc,
            "fpr95": self.fpr95,
            "n_out": len(self.uncertainty),
        }


@dataclass(frozen=True)
class MethodResult:
    """Everything measured about one method on one set of queries.

    Attributes
    ----------
    queries : Embedded
    neighbours : Neighbours [Q, k]
        The nearest other queries (k = 5 where there are as many).
    recall, mean_ap : RetrievalScore
        recall@1 and mAP@5.
    sparsification : Sparsification
        Of recall@1 over the counted queries (those with another image of their class).
    calibration : RetrievalCalibration
        Of the votes of S joint draws.
    r_auroc : float
        NaN where every query is right, or every one wrong.
    ood : dict of Detection
        One for each out-of-distribution set.
    n_draws : int
    seconds : float
        Wall time of embedding the queries (mean and uncertainty, without the joint draws).
    """

    queries: Embedded
    neighbours: Neighbours
    recall: RetrievalScore
    mean_ap: RetrievalScore
    sparsification: Sparsification
    calibration: RetrievalCalibration
    r_auroc: float
    ood: dict[str, Detection]
    n_draws: int
    seconds: float

    def numbers(self) -> dict[str, Any]:
        """The numbers alone, for JSON; NaN where a metric is undefined."""
        return {
            "recall@1": self.recall.value,
            "map@5": self.mean_ap.value,
            "ausc": self.sparsification.ausc,
            "ausc_random": self.sparsification.ausc_random,
            "ausc_oracle": self.sparsification.ausc_oracle,
            "ause": self.sparsification.ause,
            "retrieval_ece": self.calibration.ece,
            "retrieval_adaptive_ece": self.calibration.adaptive_ece,
            "vote_accuracy": float(self.calibration.correct.double().mean()),
            "r_auroc": self.r_auroc,
            "n_queries": self.recall.n_queries,
            "n_excluded": self.recall.n_excluded,
            "n_draws": self.n_draws,
            "seconds": self.seconds,
            "out": {name: detection.numbers() for name, detection in self.ood.items()},
        }


def evaluate_method(
    method: ProbabilisticEmbedder,
    queries: Iterable[Any],
    ood: Mapping[str, Iterable[Any]],
    *,
    n_draws: int = 100,
    seed: Seed = None,
    n_bootstrap: int = 1000,
    progress: bool = False,
) -> MethodResult:
    """Measure a fitted method: retrieval, calibration, sparsification, detection.

    Parameters
    ----------
    method : ProbabilisticEmbedder
        Fitted.
    queries : loader of (inputs, labels)
        Run through once; each query searches among the others.
    ood : mapping of name to loader of (inputs, labels)
        Out-of-distribution sets; their labels are not used.
    n_draws : int
        Joint draws S: one ``method.draw(S)`` serves all batches, so that draw s embeds every
        query with the same sampled model. Memory: S * Q * Z numbers.
    seed : torch.Generator or seed, optional
        Makes the draws reproducible.
    n_bootstrap : int
        Resamples of each AUROC; the same ones for every method on the same sets.
    progress : bool
        Show a bar for each loader.

    Returns
    -------
    MethodResult

    Raises
    ------
    InputError
        If there are fewer than two queries.
    EmptyLoaderError, LabelError, NonFiniteError
        From reading the loaders and from the metrics.

    Examples
    --------
    >>> from laplace_metric import LaplaceEmbedder
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = LaplaceEmbedder(torch.nn.Linear(4, 2)).fit([(x, y)], progress=False)
    >>> result = evaluate_method(method, [(x, y)], {"far": [(x + 9, y)]}, n_bootstrap=20)
    >>> result.queries.mean.shape, sorted(result.ood)
    (torch.Size([12, 2]), ['far'])
    """
    generator = as_generator(seed)
    draw = method.draw(n_draws, generator)
    embedded, samples, seconds = _embed(method, queries, draw, progress)
    if len(embedded.labels) < 2:
        raise InputError("queries holds a single input, which has no neighbour: pass more.")
    detections = {
        name: _detect(embedded, _embed(method, loader, None, progress)[0], n_bootstrap)
        for name, loader in ood.items()
    }
    return _result(embedded, samples, detections, seconds)


def _result(
    queries: Embedded, samples: Tensor, ood: dict[str, Detection], seconds: float
) -> MethodResult:
    depth = min(DEPTH, len(queries.labels) - 1)
    near = nearest_neighbours(queries.mean, k=depth)
    recall = recall_at_k(queries.mean, queries.labels, 1, neighbours=near)
    uncertainty, right = queries.uncertainty[recall.counted], recall.per_query[recall.counted]
    return MethodResult(
        queries=queries,
        neighbours=near,
        recall=recall,
        mean_ap=map_at_k(queries.mean, queries.labels, depth, neighbours=near),
        sparsification=sparsification(uncertainty, right),
        calibration=retrieval_calibration(samples, queries.labels),
        r_auroc=r_auroc(uncertainty, right),
        ood=ood,
        n_draws=len(samples),
        seconds=seconds,
    )


def _embed(
    method: ProbabilisticEmbedder, loader: Iterable[Any], draw: Draw | None, progress: bool
) -> tuple[Embedded, Tensor, float]:
    """Everything a loader yields, its joint draws [S, N, Z] if asked for, and the seconds."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    drawn: deque[Tensor] = deque()
    seconds = 0.0
    data = read_inputs("loader", loader, labelled=True)
    batches = labelled_batches(
        data, device_of(method.model), progress=progress, description="Evaluating"
    )
    for inputs, labels in batches:
        start = time.perf_counter()
        embedding = method(inputs)
        parts.append((embedding.mean, embedding.uncertainty, labels))
        seconds += time.perf_counter() - start
        if draw is not None:
            drawn.append(draw(inputs))
    mean, uncertainty, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return Embedded(mean, uncertainty, labels), _joined(drawn), seconds


def _joined(parts: deque[Tensor]) -> Tensor:
    """``torch.cat(parts, dim=1)``, letting go of each part as it is copied: half the memory."""
    if not parts:
        return torch.empty(0)
    n, _, z = parts[0].shape
    joined = parts[0].new_empty(n, sum(part.shape[1] for part in parts), z)
    start = 0
    while parts:
        part = parts.popleft()
        joined[:, start : start + part.shape[1]] = part
        start += part.shape[1]
    return joined


def _detect(queries: Embedded, ood: Embedded, n_bootstrap: int) -> Detection:
    inside, outside = queries.uncertainty, ood.uncertainty
    return Detection(
        uncertainty=outside,
        auroc=bootstrap_interval(
            mann_whitney, inside.double(), outside.double(), n=n_bootstrap, paired=False
        ),
        auprc=auprc(inside, outside),
        fpr95=fpr_at_tpr(inside, outside),
    )
