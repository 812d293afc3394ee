"""Every method learns: retrieval on digits, and an uncertainty that finds errors or OOD inputs.

One table. Each method is trained on 400 digits with three seeds; the limits leave room below what
was measured (the comments: lowest and highest of the seeds).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

from baselines import (
    HETXL,
    SNGP,
    ClassDropout,
    CrossEntropy,
    KNNDistance,
    LossPrediction,
    Mahalanobis,
    SharedBackboneEnsemble,
    ViM,
)
from baselines.base import Training
from benchmarks.datasets import load
from laplace_metric.evaluation import auroc, r_auroc, recall_at_k

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Row:
    """A method, and what it must reach with every seed."""

    name: str
    make: Callable[..., object]
    recall: float
    errors: float
    photographs: float


# Measured on seeds 0, 1, 2: recall@1, R-AUROC, AUROC of photographs
ROWS = [
    # .878-.926 .845-.865 .936-.947
    Row("cross-entropy", CrossEntropy, 0.82, 0.75, 0.85),
    # .944-.952 .796-.816 .878-.987
    Row("sngp", SNGP, 0.88, 0.7, 0.75),
    # .932-.938 .807-.878 .891-.988
    Row("sngp, spectral", partial(SNGP, spectral=True), 0.88, 0.7, 0.75),
    # .876-.922 .765-.842 .892-.940
    Row("loss prediction", LossPrediction, 0.82, 0.65, 0.8),
    # .870-.880 .788-.856 .861-.963
    Row("ensemble", SharedBackboneEnsemble, 0.8, 0.68, 0.75),
    # .866-.892 .813-.901 .899-.966
    Row("ensemble, apart", partial(SharedBackboneEnsemble, loss="mean"), 0.8, 0.7, 0.78),
    # .882-.926 .835-.847 .931-.951
    Row("dropout", ClassDropout, 0.82, 0.75, 0.85),
]
DETECTORS = [  # on the cross-entropy networks of above
    # .711-.776 .998-1.00
    Row("mahalanobis", Mahalanobis, 0.82, 0.6, 0.95),
    # .785-.808 .954-.994
    Row("relative mahalanobis", partial(Mahalanobis, relative=True), 0.82, 0.7, 0.88),
    # .628-.676 .991-.993
    Row("mahalanobis, features", partial(Mahalanobis, on="features"), 0.82, 0.55, 0.93),
    # .718-.768 .828-.918
    Row("k nearest", partial(KNNDistance, k=10), 0.82, 0.62, 0.7),
    # .753-.801 .962-.999
    Row("k nearest, features", partial(KNNDistance, k=10, on="features"), 0.82, 0.65, 0.88),
    # .703-.807 .962-.992
    Row("vim", ViM.of, 0.82, 0.6, 0.88),
    # .723-.765 .994-.997
    Row("vim, features", partial(ViM, on="features"), 0.82, 0.62, 0.93),
]


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))


def training(seed, epochs=10):
    return Training(epochs=epochs, learning_rate=3e-3, seed=seed)


@pytest.fixture(scope="module")
def digits():
    return load("digits", limit=400), load("digits", "test")


@pytest.fixture(scope="module")
def ood():
    return load("photographs", "test", limit=300).pixels()


@pytest.fixture(scope="module")
def classifiers(digits):
    return [
        CrossEntropy(network(seed), training=training(seed)).fit(digits[0].loader(50), progress=0)
        for seed in SEEDS
    ]


def measure(method, test, ood):
    """Recall@1, R-AUROC, AUROC of photographs."""
    embedding = method(test.pixels())
    recall = recall_at_k(embedding.mean, test.labels)
    errors = r_auroc(embedding.uncertainty, recall.per_query)
    return recall.value, errors, auroc(embedding.uncertainty, method(ood).uncertainty)


def check(row, measured):
    for value in measured:
        assert value[0] > row.recall, measured
        assert value[1] > row.errors, measured
        assert value[2] > row.photographs, measured


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_methods(row, digits, ood):
    methods = [row.make(network(seed), training=training(seed)) for seed in SEEDS]
    for method in methods:
        method.fit(digits[0].loader(50), progress=False)
    check(row, [measure(method, digits[1], ood) for method in methods])


@pytest.mark.parametrize("row", DETECTORS, ids=lambda row: row.name)
def test_detectors(row, digits, ood, classifiers):
    on = [c if row.make == ViM.of else c.model for c in classifiers]
    methods = [row.make(base).fit(digits[0].loader(50), progress=False) for base in on]
    check(row, [measure(method, digits[1], ood) for method in methods])


@pytest.mark.parametrize("settings", [{}, {"rank": 4}])
def test_het_xl_finds_random_labels(digits, settings):
    """Its covariance is that of label noise: digits in negative are labelled at random.

    On clean labels the covariance shrinks to its floor and its determinant tells no errors
    (R-AUROC 0.39 to 0.55 here; .511 in the URL benchmark), so nothing is asked of it there.
    """
    train, test = digits
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        x = torch.cat([train.pixels(), 1 - train.pixels()])
        y = torch.cat([train.labels, torch.randint(10, (400,), generator=g)])
        batches = [(x[rows], y[rows]) for rows in torch.randperm(800, generator=g).split(50)]
        method = HETXL(network(seed), training=training(seed), **settings)
        method.fit(batches, progress=False)
        clear, unclear = method(test.pixels()), method(1 - test.pixels())
        assert recall_at_k(clear.mean, test.labels).value > 0.85
        assert auroc(clear.uncertainty, unclear.uncertainty) > 0.95
        assert unclear.variance.sum() > 3 * clear.variance.sum()  # Gaussian noise on the sphere


def test_disagreement_finds_errors(digits, ood):
    """Jensen-Shannon divergence: R-AUROC .626-.752 of separate heads, .565-.646 of dropout.

    It does not find photographs (.47-.50 and .20-.24): there the members are unsure together.
    """
    for seed in SEEDS:
        apart = partial(SharedBackboneEnsemble, loss="mean")
        for make, limit in ((apart, 0.56), (ClassDropout, 0.52)):
            method = make(network(seed), training=training(seed), score="jensen_shannon")
            method.fit(digits[0].loader(50), progress=False)
            assert measure(method, digits[1], ood)[1] > limit


def test_the_variance_of_sngp_finds_photographs(digits, ood):
    """.955-.998 alone; .08-.51 with a covariance that is left at its start."""
    for seed in SEEDS:
        method = SNGP(network(seed), training=training(seed), score="variance")
        method.fit(digits[0].loader(50), progress=False)
        assert measure(method, digits[1], ood)[2] > 0.9
        method.parts["process"].observe([])
        assert measure(method, digits[1], ood)[2] < 0.7
