"""Uncertainty under corruption, and of errors (explicit concentration, tables 1 and 2)."""

from __future__ import annotations

from typing import Any

import torch
from scipy.stats import mannwhitneyu
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from benchmarks.corruptions import SEVERITIES, TYPES, corrupted
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.scores import Measured, Score, detection, mean, resampled
from benchmarks.engine.statistics import spearman
from laplace_metric.evaluation import r_auroc
from laplace_metric.evaluation._nearest_neighbours import nearest_neighbours

LEVELS = torch.arange(len(SEVERITIES) + 1).double()
NEIGHBOURS = 5
MEMORY = 5_000
"""Training items that the nearest-neighbour detector keeps."""


def measure(experiment: Experiment) -> Measured:
    """Spearman of severity 0..5 and mean uncertainty, type by type; positive: it grows."""
    n = experiment.space.size.resamples
    responses = {kind: response(experiment, kind) for kind in TYPES}
    scores: dict[str, Score | float] = {
        f"severity {kind}": resampled(of_means, levels, n=n) for kind, levels in responses.items()
    }
    stacked = torch.stack(list(responses.values()), dim=1)  # [n, types, 6]
    scores["severity mean"] = resampled(average(of_means), stacked, n=n)
    scores["severity pooled"] = resampled(average(of_all), stacked, n=n)
    scores |= failures(experiment, n)
    scores |= detector(experiment, n)
    curve = {kind: [float(f"{x:.4g}") for x in u.mean(0)] for kind, u in responses.items()}
    return Measured(scores, {} if experiment.seed else {"severity": curve})


def response(experiment: Experiment, kind: str) -> Tensor:
    """Uncertainty [n, 6] of the same images, whole and at five severities."""
    part = experiment.task.test.spread(experiment.space.size.corrupted)
    assert part.images is not None
    levels, pixels = [experiment.embed(part).uncertainty], part.images.pixels
    for severity in SEVERITIES:
        key = f"{kind} {severity} of {part.digest}"
        images = lambda s=severity: corrupted(pixels(), kind, s, seed=0)  # noqa: E731
        inputs = experiment.task.made(key, images)
        levels.append(experiment.ask(inputs).uncertainty)
    return torch.stack(levels, dim=1).double()


def of_means(levels: Tensor) -> float:
    """Of severity and the mean over the images [n, 6]."""
    return spearman(LEVELS, levels.mean(0))


def of_all(levels: Tensor) -> float:
    """Of severity and uncertainty over all images and severities [n, 6]."""
    return spearman(LEVELS.expand(len(levels), -1).flatten(), levels.flatten())


def average(metric: Any) -> Any:
    """The mean over the types of [n, types, 6]."""

    def over_types(stacked: Tensor) -> float:
        return sum(metric(levels) for levels in stacked.unbind(1)) / stacked.shape[1]

    return over_types


def detector(experiment: Experiment, n: int) -> dict[str, Score]:
    """OOD inputs by their distance to the 5 nearest training items.

    In embeddings alone, and with the uncertainty as one more coordinate (all of unit variance on
    the training items).
    """
    memory = experiment.embed(experiment.task.train.spread(MEMORY))
    scores = {}
    for name, with_uncertainty in (("k-nn", False), ("k-nn+u", True)):
        shown = [
            torch.cat([one.mean, one.uncertainty[:, None].to(one.mean)], 1)
            if with_uncertainty
            else one.mean
            for one in (memory, experiment.known, *experiment.ood.values())
        ]
        centre, spread = shown[0].mean(0), shown[0].std(0).clamp_min(1e-12)
        scaled, *asked = ((x - centre) / spread for x in shown)
        known, *ood = (nearest_neighbours(x, scaled, k=NEIGHBOURS).distances.mean(1) for x in asked)
        for out, distances in zip(experiment.ood, ood, strict=True):
            scores[f"{name} auroc {out}"] = detection(known, distances, n)
    return scores


TRAINED = 5_000


def failures(experiment: Experiment, n: int) -> dict[str, Score | float]:
    """Accuracy of the probe, AUROC of the uncertainty of its errors, Mann-Whitney's p-value."""
    train = experiment.embed(experiment.task.train.spread(TRAINED))
    probe = LogisticRegression(max_iter=1_000)
    probe.fit(train.mean.numpy(), train.labels.numpy())
    predicted = torch.from_numpy(probe.predict(experiment.known.mean.numpy()))
    right = (predicted == experiment.known.labels).double()
    unsure = experiment.known.uncertainty.double()
    test = mannwhitneyu(unsure[right == 0], unsure[right == 1], alternative="greater")
    return {
        "probe accuracy": mean(right, n),
        "failure auroc": resampled(r_auroc, unsure, right, n=n),
        "failure p": float(test.pvalue),
    }
