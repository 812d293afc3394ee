"""Queries of classes that training never saw (URL, Kirchhof et al. 2023b).

``url``: errors of retrieval, smaller crops, and the mixture of images of training classes with
images of new ones. ``fewshot``, fine-tuning on k images of each new class: of the classes that are
asked, with other images of them as queries (appendix C.6); and of every second new class, with the
others as queries, which the paper does not have. Every method trains on from its upstream weights,
with its own loss; post-hoc methods are fitted anew on the few images. With one image of a class
there is no positive pair, so k starts at 2.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from pytorch_metric_learning.losses import ContrastiveLoss

from baselines import MetricLearning, Training
from baselines.base import Trained
from benchmarks.corruptions import cropped, kept_shares
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.fitting import Schedule
from benchmarks.engine.method import Embedded
from benchmarks.engine.scores import Measured, Score, detection, error_detection, mean, resampled
from benchmarks.engine.statistics import spearman
from benchmarks.tasks import Part, Task
from benchmarks.tasks.task import joined
from laplace_metric import LaplaceEmbedder, ProbabilisticEmbedder
from laplace_metric.evaluation import r_auroc, recall_at_k
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


SHOTS = (0, 2, 5, 10)
OTHERS = " of other classes"
"""End of the metrics of shots of classes that are not asked."""
SETTINGS = ("distance", "hessian", "structure", "positivity", "prior_precision")
TUNING = Training(epochs=3, learning_rate=3e-4)


def fewshot(experiment: Experiment) -> Measured:
    """Recall and R-AUROC after each number of shots, of the classes asked and of others."""
    scores: dict[str, Score | float] = {}
    n = experiment.space.size.resamples
    for name, (shown, asked) in shares(experiment.task).items():
        for shots in SHOTS:
            method = tuned(experiment, few(shown, shots)) if shots else experiment.method
            answers = replace(experiment, method=method).embed(asked)
            recall = recall_at_k(answers.mean, answers.labels, 1)
            right, unsure = recall.per_query[recall.counted], answers.uncertainty[recall.counted]
            scores[f"recall@1 {shots} shots{name}"] = mean(right, n)
            scores[f"r_auroc {shots} shots{name}"] = resampled(r_auroc, unsure, right, n=n)
    return Measured(scores)


def shares(task: Task) -> dict[str, tuple[Part, Part]]:
    """Images of which a few are shown, and those that are asked, by the end of their metrics.

    "": every second image of each new class is shown, the others are asked (as printed).
    `OTHERS`: all images of every second new class are shown, those of the others are asked.
    """
    everything = task.test if task.whole is None else task.whole
    order = everything.labels.argsort(stable=True)
    counts = everything.labels.unique(return_counts=True)[1]
    place = torch.empty_like(order)
    place[order] = torch.cat([torch.arange(int(count)) for count in counts])
    even = task.test.labels.unique()[::2]
    shown, asked = torch.isin(everything.labels, even), ~torch.isin(task.test.labels, even)
    return {
        "": (
            everything.subset(place % 2 == 0),
            everything.subset(place % 2 == 1).spread(len(task.test)),
        ),
        OTHERS: (everything.subset(shown), task.test.subset(asked)),
    }


def few(part: Part, shots: int) -> Part:
    """The first so many images of each class; classes with fewer are left out."""
    rows = [(part.labels == label).nonzero().flatten()[:shots] for label in part.labels.unique()]
    return part.subset(torch.cat([one for one in rows if len(one) == shots]))


def tuned(experiment: Experiment, part: Part) -> ProbabilisticEmbedder:
    """The method after its fine-tuning; the one that was passed stays as it is."""
    rounds = Schedule(part, experiment.seed, per_class=4)
    training = replace(TUNING, seed=experiment.seed)
    if isinstance(experiment.method, LaplaceEmbedder):
        loss = ContrastiveLoss(neg_margin=experiment.base["margin"])
        learner = MetricLearning(experiment.method.model, loss=loss, training=training)
        model = learner.fit(rounds, progress=False).model
        settings = {name: getattr(experiment.method.settings, name) for name in SETTINGS}
        return LaplaceEmbedder(model, **settings).fit(part.loader(500), progress=False)
    assert isinstance(experiment.method, Trained)
    method = copy.deepcopy(experiment.method)
    method.training = training
    return method.fine_tune(rounds, progress=False)
