"""Retrieval, calibration, sparsification and strange inputs (Warburg et al. 2023)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.engine import curves
from benchmarks.engine.scores import (
    Measured,
    Score,
    calibration_error,
    detection,
    error_detection,
    mean,
)
from benchmarks.engine.subject import Subject
from laplace_metric.cli.pages import strips
from laplace_metric.evaluation import DEPTH, RetrievalCalibration, auprc, fpr_at_tpr, map_at_k
from laplace_metric.evaluation import retrieval_calibration as calibrate

PICTURED = ("laplace",)
SHOWN, NEIGHBOURS = 4, 4


def measure(subject: Subject) -> Measured:
    """Metrics of metrics.md that need nothing but the queries and the strange inputs."""
    n = subject.space.size.resamples
    unsure, right = subject.answered
    votes = None if subject.entry.is_point else calibrate(subject.votes(), subject.known.labels)
    scores: dict[str, Score | float] = {
        "recall@1": mean(right, n),
        "map@5": map_at_k(
            subject.known.mean, subject.known.labels, DEPTH, neighbours=subject.neighbours
        ).value,
        **error_detection(unsure, right, n),
    }
    if votes is not None:
        scores["ece"] = calibration_error(votes.confidence, votes.correct, n)
        scores["adaptive_ece"] = votes.adaptive_ece
    for name, strange in subject.strange.items():
        scores[f"auroc {name}"] = detection(subject.known.uncertainty, strange.uncertainty, n)
        scores[f"auprc {name}"] = auprc(subject.known.uncertainty, strange.uncertainty)
        scores[f"fpr95 {name}"] = fpr_at_tpr(subject.known.uncertainty, strange.uncertainty)
    if subject.seed:
        return Measured(scores)
    return Measured(scores, plotted(subject, votes), pictured(subject))


def plotted(subject: Subject, votes: RetrievalCalibration | None) -> dict[str, Any]:
    """The curves of the first seed."""
    unsure, right = subject.answered
    known = subject.known.uncertainty
    strange = {name: found.uncertainty for name, found in subject.strange.items()}
    return {
        "sparsification": curves.removal(unsure, right),
        "risk": curves.coverage(unsure, right),
        "histograms": curves.histograms(known, strange),
        "roc": {name: curves.roc(known, scores) for name, scores in strange.items()},
        **({} if votes is None else {"reliability": curves.reliability(votes)}),
    }


def pictured(subject: Subject) -> dict[str, Any]:
    """The queries at both ends of the uncertainty, with their neighbours."""
    images = subject.task.test.images
    if subject.entry.name not in PICTURED or images is None:
        return {}
    near = subject.neighbours.indices[:, :NEIGHBOURS]
    certain, unsure = strips(subject.known.uncertainty, near, images, SHOWN)
    return {
        "certain": [asdict(strip) for strip in certain],
        "unsure": [asdict(strip) for strip in unsure],
    }
