"""Every method learns: retrieval on digits, and an uncertainty that finds errors or strangers.

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
from laplace_metric.datasets import load
from laplace_metric.evaluation import auroc, r_auroc, recall_at_k

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Row:
    """A method, and what it must reach; ``None`` where nothing is claimed."""

    name: str
    make: Callable[..., object]
    recall: float
    errors: float | None
    photographs: float | None


ROWS = [
    Row("cross-entropy", CrossEntropy, 0.82, 0.75, 0.85),
    Row("sngp", SNGP, 0.88, 0.7, 0.8),
    Row("sngp, spectral", partial(SNGP, spectral=True), 0.88, 0.7, 0.8),
    Row("loss prediction", LossPrediction, 0.82, 0.68, 0.8),
    Row("ensemble", SharedBackboneEnsemble, 0.8, 0.7, 0.75),
    Row("dropout", ClassDropout, 0.82, 0.75, 0.85),
]
DETECTORS = [
    Row("mahalanobis", Mahalanobis, 0.82, 0.62, 0.95),
    Row("relative mahalanobis", partial(Mahalanobis, relative=True), 0.82, 0.7, 0.9),
    Row("mahalanobis, features", partial(Mahalanobis, on="features"), 0.82, 0.55, 0.95),
    Row("k nearest", partial(KNNDistance, k=10), 0.82, 0.65, 0.7),
    Row("k nearest, features", partial(KNNDistance, k=10, on="features"), 0.82, 0.65, 0.9),
    Row("vim", ViM.of, 0.82, 0.62, 0.9),
    Row("vim, features", partial(ViM, on="features"), 0.82, 0.65, 0.95),
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
def strangers():
    return load("photographs", "test", limit=300).pixels()


@pytest.fixture(scope="module")
def classifiers(digits):
    return [
        CrossEntropy(network(seed), training=training(seed)).fit(digits[0].loader(50), progress=0)
        for seed in SEEDS
    ]


def measure(method, test, strangers):
    """Recall@1, R-AUROC, AUROC of photographs."""
    found = method(test.pixels())
    recall = recall_at_k(found.mean, test.labels)
    errors = r_auroc(found.uncertainty, recall.per_query)
    return recall.value, errors, auroc(found.uncertainty, method(strangers).uncertainty)


def check(row, measured):
    for value in measured:
        assert value[0] > row.recall, measured
        assert row.errors is None or value[1] > row.errors, measured
        assert row.photographs is None or value[2] > row.photographs, measured


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_methods(row, digits, strangers):
    methods = [row.make(network(seed), training=training(seed)) for seed in SEEDS]
    for method in methods:
        method.fit(digits[0].loader(50), progress=False)
    check(row, [measure(method, digits[1], strangers) for method in methods])


@pytest.mark.parametrize("row", DETECTORS, ids=lambda row: row.name)
def test_detectors(row, digits, strangers, classifiers):
    on = [c if row.make == ViM.of else c.model for c in classifiers]
    methods = [row.make(base).fit(digits[0].loader(50), progress=False) for base in on]
    check(row, [measure(method, digits[1], strangers) for method in methods])


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


@pytest.mark.parametrize("make", [ClassDropout, partial(SharedBackboneEnsemble, loss="mean")])
def test_disagreement_finds_errors(make, digits, strangers):
    """The Jensen-Shannon divergence of the members, which is small where all are unsure."""
    for seed in SEEDS:
        method = make(network(seed), training=training(seed), score="jensen_shannon")
        method.fit(digits[0].loader(50), progress=False)
        assert measure(method, digits[1], strangers)[1] > 0.52
