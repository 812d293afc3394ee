"""Zero-shot transfer of uncertainty (URL, Kirchhof et al. 2023b).

Errors of retrieval among classes that training never saw, smaller crops, and the mixture of images
of training classes with images of new ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.engine.scores import Measured, Score, detection, error_detection, mean, resampled
from benchmarks.engine.subject import Subject
from benchmarks.tasks.crops import cropped, kept_shares
from benchmarks.tasks.task import joined
from laplace_metric.evaluation import recall_at_k, spearman
from laplace_metric.evaluation.neighbours import nearest_neighbours

HALF = 0.5


def measure(subject: Subject) -> Measured:
    """R-AUROC above all: does the uncertainty know which nearest neighbours are wrong?"""
    n = subject.space.size.resamples
    unsure, right = subject.answered
    scores: dict[str, Score | float] = {
        "recall@1": mean(right, n),
        **error_detection(unsure, right, n),
        **crop_response(subject, n),
        **(mixture(subject, n) if subject.task.seen is not None else {}),
    }
    return Measured(scores)


def crop_response(subject: Subject, n: int) -> dict[str, Score]:
    """Share of images whose crop is more uncertain; rank correlation with what was cut off."""
    images = subject.task.test.images
    if images is None:
        return {}
    kept = kept_shares(len(images))
    key = f"crops of {subject.task.test.digest}"
    inputs = subject.task.made(key, lambda: cropped(images.pixels(), kept))
    found = subject.ask(inputs).uncertainty
    whole = subject.known.uncertainty
    higher = (found > whole).double() + HALF * (found == whole).double()
    return {
        "crop more uncertain": mean(higher, n),
        "crop rank": resampled(spearman, 1 - kept.double(), found, n=n),
    }


def mixture(subject: Subject, n: int) -> dict[str, Score]:
    """Half images of training classes, half of new ones, searched together (URL, appendix C.5)."""
    assert subject.task.seen is not None
    size = min(len(subject.task.seen), len(subject.task.test))
    parts = [part.spread(size) for part in (subject.task.seen, subject.task.test)]
    found = subject.embed(joined(*parts))
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
