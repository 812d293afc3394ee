"""Does the uncertainty grow with corruption, and find errors? (paper 004, tables 1 and 2)"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.corruptions import SEVERITIES, TYPES, corrupted
from benchmarks.engine.scores import Measured, Score, detection, resampled
from benchmarks.engine.subject import Subject
from benchmarks.protocols.probe import failures
from benchmarks.tasks import Part
from laplace_metric.evaluation import spearman
from laplace_metric.evaluation.neighbours import nearest_neighbours

LEVELS = torch.arange(len(SEVERITIES) + 1).double()
NEIGHBOURS = 5
MEMORY = 5_000
"""Training items that the nearest-neighbour detector keeps."""


def measure(subject: Subject) -> Measured:
    """Spearman of severity 0..5 and mean uncertainty, type by type; positive: it grows."""
    n = subject.space.size.resamples
    responses = {kind: response(subject, kind) for kind in TYPES}
    scores: dict[str, Score | float] = {
        f"severity {kind}": resampled(of_means, levels, n=n) for kind, levels in responses.items()
    }
    stacked = torch.stack(list(responses.values()), dim=1)  # [n, types, 6]
    scores["severity mean"] = resampled(average(of_means), stacked, n=n)
    scores["severity pooled"] = resampled(average(of_all), stacked, n=n)
    scores |= failures(subject, n)
    scores |= detector(subject, n)
    curve = {kind: [float(f"{x:.4g}") for x in u.mean(0)] for kind, u in responses.items()}
    return Measured(scores, {} if subject.seed else {"severity": curve})


def response(subject: Subject, kind: str) -> Tensor:
    """Uncertainty [n, 6] of the same images, whole and at five severities."""
    part = subject.task.test.spread(subject.space.size.corrupted)
    assert part.images is not None
    levels = [subject.embed(part).uncertainty]
    for severity in SEVERITIES:
        key = f"{kind} {severity} of {part.digest}"
        inputs = subject.task.made(key, partial(damaged, part, kind, severity))
        levels.append(subject.ask(inputs).uncertainty)
    return torch.stack(levels, dim=1).double()


def damaged(part: Part, kind: str, severity: int) -> Tensor:
    """The images of a part in [0, 1], corrupted."""
    assert part.images is not None
    return corrupted(part.images.pixels(), kind, severity, seed=0)


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


def detector(subject: Subject, n: int) -> dict[str, Score]:
    """Strange inputs by their distance to the 5 nearest training items, in embeddings alone and
    with the uncertainty as one more coordinate (all of unit variance on the training items)."""
    memory = subject.embed(subject.task.train.spread(MEMORY))
    scores = {}
    for name, with_uncertainty in (("k-nn", False), ("k-nn+u", True)):
        shown = [
            torch.cat([one.mean, one.uncertainty[:, None].to(one.mean)], 1)
            if with_uncertainty
            else one.mean
            for one in (memory, subject.known, *subject.strange.values())
        ]
        centre, spread = shown[0].mean(0), shown[0].std(0).clamp_min(1e-12)
        kept, *asked = ((x - centre) / spread for x in shown)
        known, *strange = (
            nearest_neighbours(x, kept, k=NEIGHBOURS).distances.mean(1) for x in asked
        )
        for out, distances in zip(subject.strange, strange, strict=True):
            scores[f"{name} auroc {out}"] = detection(known, distances, n)
    return scores
