"""Zero-shot transfer of uncertainty (URL, Kirchhof et al. 2023b).

Errors of retrieval among classes that training never saw, smaller crops, and the mixture of images
of training classes with images of new ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.corruptions import cropped, kept_shares
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.scores import Measured, Score, detection, error_detection, mean, resampled
from benchmarks.tasks.task import joined
from laplace_metric.evaluation import recall_at_k, spearman
from laplace_metric.evaluation.neighbours import nearest_neighbours

HALF = 0.5


def measure(experiment: Experiment) -> Measured:
    """R-AUROC above all: whether the uncertainty knows which nearest neighbours are wrong."""
    n = experiment.space.size.resamples
    unsure, right = experiment.answered
    scores: dict[str, Score | float] = {
        "recall@1": mean(right, n),
        **error_detection(unsure, right, n),
        **crop_response(experiment, n),
        **(mixture(experiment, n) if experiment.task.seen is not None else {}),
    }
    return Measured(scores)


def crop_response(experiment: Experiment, n: int) -> dict[str, Score]:
    """Share of images whose crop is more uncertain; rank correlation with what was cut off."""
    images = experiment.task.test.images
    if images is None:
        return {}
    kept = kept_shares(len(images))
    key = f"crops of {experiment.task.test.digest}"
    inputs = experiment.task.made(key, lambda: cropped(images.pixels(), kept))
    found = experiment.ask(inputs).uncertainty
    whole = experiment.known.uncertainty
    higher = (found > whole).double() + HALF * (found == whole).double()
    return {
        "crop more uncertain": mean(higher, n),
        "crop rank": resampled(spearman, 1 - kept.double(), found, n=n),
    }


def mixture(experiment: Experiment, n: int) -> dict[str, Score]:
    """Half images of training classes, half of new ones, searched together (URL, appendix C.5)."""
    assert experiment.task.seen is not None
    size = min(len(experiment.task.seen), len(experiment.task.test))
    parts = [part.spread(size) for part in (experiment.task.seen, experiment.task.test)]
    found = experiment.embed(joined(*parts))
    near = nearest_neighbours(found.mean, k=1)
    recall = recall_at_k(found.mean, found.labels, 1, neighbours=near)
    kept = recall.counted
    errors = error_detection(found.uncertainty[kept], recall.per_query[kept], n)
    is_new = torch.arange(len(found.labels)) >= size
    return {
        "mixture r_auroc": errors["r_auroc"],
        "new classes": detection(*split(found.uncertainty, is_new), n),
    }


def split(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Values that are not chosen, and those that are."""
    return values[~chosen], values[chosen]
