"""``url``: queries of classes that training never saw (URL, Kirchhof et al. 2023b).

Errors of retrieval, smaller crops, and the mixture of images of training classes with images of new
ones.
"""

from __future__ import annotations

from benchmarks.corruptions import cropped, kept_shares
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.method import Embedded
from benchmarks.engine.scores import Measured, Score, detection, error_detection, mean, resampled
from benchmarks.engine.statistics import spearman
from benchmarks.tasks.task import joined
from laplace_metric.evaluation import recall_at_k
from laplace_metric.evaluation._nearest_neighbours import nearest_neighbours

HALF = 0.5


def url(experiment: Experiment) -> Measured:
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


def crops(experiment: Experiment) -> Embedded | None:
    """One crop of each query; None without pixels, and for a gallery that holds the image."""
    images = experiment.task.test.images
    if images is None or experiment.entry.number == "match":
        return None
    key = f"crops of {experiment.task.test.digest}"
    make = lambda: cropped(images.pixels(), kept_shares(len(images)))  # noqa: E731
    return experiment.ask(experiment.task.made(key, make))


def crop_response(experiment: Experiment, n: int) -> dict[str, Score]:
    """Share of images whose crop is more uncertain; rank correlation with what was cut off."""
    cut = crops(experiment)
    if cut is None:
        return {}
    shares = kept_shares(len(cut.labels))
    of_crops, of_images = cut.uncertainty, experiment.known.uncertainty
    higher = (of_crops > of_images).double() + HALF * (of_crops == of_images).double()
    return {
        "crop more uncertain": mean(higher, n),
        "crop rank": resampled(spearman, 1 - shares.double(), of_crops, n=n),
    }


def mixture(experiment: Experiment, n: int) -> dict[str, Score]:
    """Half images of training classes, half of new ones, searched together (URL, appendix C.5)."""
    assert experiment.task.seen is not None
    size = min(len(experiment.task.seen), len(experiment.task.test))
    parts = [part.spread(size) for part in (experiment.task.seen, experiment.task.test)]
    mixed = experiment.embed(joined(*parts))
    near = nearest_neighbours(mixed.mean, k=1)
    recall = recall_at_k(mixed.mean, mixed.labels, 1, neighbours=near)
    counted = recall.counted
    errors = error_detection(mixed.uncertainty[counted], recall.per_query[counted], n)
    return {
        "mixture r_auroc": errors["r_auroc"],
        "new classes": detection(mixed.uncertainty[:size], mixed.uncertainty[size:], n),
    }
