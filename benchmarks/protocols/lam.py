"""Retrieval, calibration, sparsification and OOD inputs (Warburg et al. 2023)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.engine import curves
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.scores import (
    Measured,
    Score,
    calibration_error,
    detection,
    error_detection,
    mean,
)
from laplace_metric.cli.pages import strips
from laplace_metric.evaluation import DEPTH, RetrievalCalibration, auprc, fpr_at_tpr, map_at_k
from laplace_metric.evaluation import retrieval_calibration as calibrate

PICTURED = ("laplace",)
SHOWN, NEIGHBOURS = 4, 4


def measure(experiment: Experiment) -> Measured:
    """Metrics of metrics.md that need nothing but the queries and the OOD inputs."""
    n = experiment.space.size.resamples
    unsure, right = experiment.answered
    votes = (
        None
        if experiment.entry.is_point
        else calibrate(experiment.votes(), experiment.known.labels)
    )
    scores: dict[str, Score | float] = {
        "recall@1": mean(right, n),
        "map@5": map_at_k(
            experiment.known.mean, experiment.known.labels, DEPTH, neighbours=experiment.neighbours
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
    return Measured(scores, plotted(experiment, votes), pictured(experiment))


def plotted(experiment: Experiment, votes: RetrievalCalibration | None) -> dict[str, Any]:
    """The curves of the first seed."""
    unsure, right = experiment.answered
    known = experiment.known.uncertainty
    ood = {name: found.uncertainty for name, found in experiment.ood.items()}
    return {
        "sparsification": curves.removal(unsure, right),
        "risk": curves.coverage(unsure, right),
        "histograms": curves.histograms(known, ood),
        "roc": {name: curves.roc(known, scores) for name, scores in ood.items()},
        **({} if votes is None else {"reliability": curves.reliability(votes)}),
    }


def pictured(experiment: Experiment) -> dict[str, Any]:
    """The queries at both ends of the uncertainty, with their neighbours."""
    images = experiment.task.test.images
    if experiment.entry.name not in PICTURED or images is None:
        return {}
    near = experiment.neighbours.indices[:, :NEIGHBOURS]
    certain, unsure = strips(experiment.known.uncertainty, near, images, SHOWN)
    return {
        "certain": [asdict(strip) for strip in certain],
        "unsure": [asdict(strip) for strip in unsure],
    }
