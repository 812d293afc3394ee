"""Do people disagree where the uncertainty is high? CIFAR-10H (Kirchhof et al. 2023a)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine import curves
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.scores import Measured, Score, error_detection, mean, resampled
from benchmarks.protocols.lam import pictured
from benchmarks.protocols.url import crop_response
from benchmarks.tasks.frozen import entropy
from laplace_metric.cli.pages import Strip, strip
from laplace_metric.datasets import ImageSet
from laplace_metric.distributions import cap_cosine
from laplace_metric.evaluation import spearman

PROBABILITY = 0.95
PICTURED = ("mcinfonce", "laplace")
ENDS, SHOWN = 3, 5
"""Clear and ambiguous queries whose credible sets are shown; images of each set."""


def measure(experiment: Experiment) -> Measured:
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
        "sparsification": curves.removal(unsure, right),
        "risk": curves.coverage(unsure, right),
    }
    pictures = pictured(experiment)
    if experiment.entry.name in PICTURED:
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
    n = min(SHOWN, len(rows))
    return rows[torch.arange(n) * len(rows) // max(n, 1)]
