"""Queries of the classes of the training.

``lam``: retrieval, calibration, sparsification and OOD inputs (Warburg et al. 2023). ``human``: do
people disagree where the uncertainty is high? CIFAR-10H (Kirchhof et al. 2023a).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.experiment import Experiment
from benchmarks.engine.method import DEPTH
from benchmarks.engine.scores import (
    Measured,
    Score,
    calibration_error,
    detection,
    error_detection,
    histograms,
    mean,
    reliability_bins,
    removal_curve,
    resampled,
    risk_curve,
    roc_points,
)
from benchmarks.engine.statistics import spearman
from benchmarks.protocols.open_set import crop_response
from benchmarks.strips import Strip, strip, strips
from benchmarks.tasks.frozen import entropy
from laplace_metric.datasets import ImageSet
from laplace_metric.distributions import cap_cosine
from laplace_metric.evaluation import auprc, fpr_at_tpr, map_at_k
from laplace_metric.evaluation import retrieval_calibration as calibrate
from laplace_metric.evaluation._retrieval_calibration import RetrievalCalibration

LAM_PICTURED = ("laplace",)
LAM_SHOWN, NEIGHBOURS = 4, 4


def lam(experiment: Experiment) -> Measured:
    """Metrics of metrics.md that need nothing but the queries and the OOD inputs."""
    n = experiment.space.size.resamples
    unsure, right = experiment.answered
    labels, votes = experiment.known.labels, None
    if not experiment.entry.is_point:
        votes = calibrate(experiment.votes(), labels)
    scores: dict[str, Score | float] = {
        "recall@1": mean(right, n),
        "map@5": map_at_k(
            experiment.known.mean, labels, DEPTH, neighbours=experiment.neighbours
        ).value,
        **error_detection(unsure, right, n),
    }
    if votes is not None:
        scores["ece"] = calibration_error(votes.confidence, votes.correct, n)
        scores["adaptive_ece"] = votes.adaptive_ece
    for name, ood in experiment.ood.items():
        scores[f"auroc {name}"] = detection(experiment.known.uncertainty, ood.uncertainty, n)
        scores[f"auprc {name}"] = auprc(experiment.known.uncertainty, ood.uncertainty)
        scores[f"fpr95 {name}"] = fpr_at_tpr(experiment.known.uncertainty, ood.uncertainty)
    if experiment.seed:
        return Measured(scores)
    return Measured(scores, lam_curves(experiment, votes), query_strips(experiment))


def lam_curves(experiment: Experiment, votes: RetrievalCalibration | None) -> dict[str, Any]:
    """The curves of the first seed."""
    unsure, right = experiment.answered
    known = experiment.known.uncertainty
    ood = {name: found.uncertainty for name, found in experiment.ood.items()}
    return {
        "sparsification": removal_curve(unsure, right),
        "risk": risk_curve(unsure, right),
        "histograms": histograms(known, ood),
        "roc": {name: roc_points(known, scores) for name, scores in ood.items()},
        **({} if votes is None else {"reliability": reliability_bins(votes)}),
    }


def query_strips(experiment: Experiment) -> dict[str, Any]:
    """The queries at both ends of the uncertainty, with their neighbours."""
    images = experiment.task.test.images
    if experiment.entry.name not in LAM_PICTURED or images is None:
        return {}
    near = experiment.neighbours.indices[:, :NEIGHBOURS]
    certain, unsure = strips(experiment.known.uncertainty, near, images, LAM_SHOWN)
    return {
        "certain": [asdict(strip) for strip in certain],
        "unsure": [asdict(strip) for strip in unsure],
    }


PROBABILITY = 0.95
CREDIBLE_PICTURED = ("mcinfonce", "laplace")
ENDS, CREDIBLE_SHOWN = 3, 5
"""Clear and ambiguous queries whose credible sets are shown; images of each set."""


def human(experiment: Experiment) -> Measured:
    """Rank correlation with the entropy of annotators and with cropping; recall and rejection."""
    n = experiment.space.size.resamples
    unsure, right = experiment.answered
    disagreement = entropy(experiment.task.test)
    scores: dict[str, Score | float] = {
        "entropy rank": resampled(spearman, disagreement, experiment.known.uncertainty, n=n),
        **crop_response(experiment, n),
        "recall@1": mean(right, n),
        **error_detection(unsure, right, n),
    }
    if experiment.seed:
        return Measured(scores)
    plotted: dict[str, Any] = {
        "sparsification": removal_curve(unsure, right),
        "risk": risk_curve(unsure, right),
    }
    pictures = query_strips(experiment)
    if experiment.entry.name in CREDIBLE_PICTURED:
        pictures["credible"] = [asdict(one) for one in credible(experiment, disagreement)]
    return Measured(scores, plotted, pictures)


def credible(experiment: Experiment, disagreement: Tensor) -> list[Strip]:
    """The clearest and the most disputed queries with images out of their 95 % credible set.

    The set is the cap around the query's direction that holds 95 % of its von Mises-Fisher
    distribution; an image is in it where its mean direction is (paper, appendix C.5).
    """
    images, mu = experiment.task.test.images, experiment.known.mean.double()
    assert isinstance(images, ImageSet)
    found, _ = experiment.method.embed(experiment.task.test.loader(), progress=False)
    edge = cap_cosine(found.concentration.cpu().double(), mu.shape[1], PROBABILITY)
    order = disagreement.argsort(stable=True)
    shown = []
    for query in torch.cat([order[:ENDS], order.flip(0)[:ENDS]]).tolist():
        inside = (mu @ mu[query] >= edge[query]).nonzero().flatten()
        inside = inside[inside != query]
        angle = torch.rad2deg(torch.arccos(edge[query].clamp(-1, 1)))
        caption = f"{float(angle):.0f}°: {len(inside)}"
        shown.append(strip(caption, query, spread(inside), images))
    return shown


def spread(rows: Tensor) -> Tensor:
    """A few rows of many, evenly spaced."""
    n = min(CREDIBLE_SHOWN, len(rows))
    return rows[torch.arange(n) * len(rows) // max(n, 1)]
