"""The protocol against its parts, called one by one on everything at once."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy import stats
from torch import nn

from baselines import MCDropout
from benchmarks.engine.method import evaluate_method
from benchmarks.engine.statistics import mann_whitney, mean_and_standard_error
from laplace_metric import LaplaceEmbedder
from laplace_metric.evaluation import (
    auprc,
    auroc,
    fpr_at_tpr,
    map_at_k,
    r_auroc,
    recall_at_k,
    retrieval_calibration,
    sparsification,
)

SCORES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=20)


def blobs(n, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    return torch.randn(n, 4, generator=generator) + labels[:, None], labels


def batches(x, y, size):
    return list(zip(x.split(size), y.split(size), strict=True))


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)).eval()


@pytest.fixture(scope="module")
def laplace(model):
    return LaplaceEmbedder(model, prior_precision=1.0, temperature=1.0).fit(
        [blobs(60, 1)], progress=False
    )


def measure(method, size, **options):
    x, y = blobs(50, 2)
    far = blobs(30, 3)[0] * 3, torch.zeros(30, dtype=torch.int64)
    generator = torch.Generator().manual_seed(7)
    return evaluate_method(
        method,
        batches(x, y, size),
        {"far": batches(*far, size)},
        seed=generator,
        **{"n_draws": 20, "n_bootstrap": 50, **options},
    )


def test_every_number_is_that_of_its_metric(laplace):
    x, y = blobs(50, 2)
    inside, outside = laplace(x), laplace(blobs(30, 3)[0] * 3)
    numbers = measure(laplace, 50).numbers()
    u, v = inside.uncertainty, outside.uncertainty
    right = recall_at_k(inside.mean, y).per_query
    draws = laplace.sample(x, 20, torch.Generator().manual_seed(7))
    vote = retrieval_calibration(draws, y)
    curve = sparsification(u, right)
    assert numbers["recall@1"] == pytest.approx(float(right.mean()))
    assert numbers["map@5"] == pytest.approx(map_at_k(inside.mean, y, 5).value)
    assert numbers["ausc"] == pytest.approx(curve.ausc)
    assert numbers["ausc_random"] == pytest.approx(curve.ausc_random)
    assert numbers["ausc_oracle"] == pytest.approx(curve.ausc_oracle)
    assert numbers["r_auroc"] == pytest.approx(r_auroc(u, right))
    assert numbers["retrieval_ece"] == pytest.approx(vote.ece)
    assert numbers["vote_accuracy"] == pytest.approx(float(vote.correct.double().mean()))
    found = numbers["out"]["far"]
    assert found["auroc"] == pytest.approx(auroc(u, v))
    assert found["auprc"] == pytest.approx(auprc(u, v))
    assert found["fpr95"] == pytest.approx(fpr_at_tpr(u, v))
    assert found["auroc_low"] < found["auroc"] < found["auroc_high"]
    assert found["n_out"] == 30


@pytest.mark.parametrize("kind", ["laplace", "dropout"])
def test_the_draws_are_joint_over_batches(kind, laplace, model):
    """One sampled network embeds every batch: the batch size changes no vote."""

    def method():
        source = torch.Generator().manual_seed(0)
        return laplace if kind == "laplace" else MCDropout(model, n_samples=5, seed=source)

    whole, parts = measure(method(), 50), measure(method(), 7)
    torch.testing.assert_close(whole.calibration.confidence, parts.calibration.confidence)
    assert len(whole.calibration.confidence.unique()) > 1


def test_a_query_without_a_partner_is_left_out_of_recall_and_sparsification(laplace):
    x, y = blobs(20, 2)
    y = y.clone()
    y[0] = 9
    result = evaluate_method(laplace, [(x, y)], {}, n_draws=3, n_bootstrap=2)
    assert result.numbers()["n_excluded"] == 1
    assert result.sparsification.n_queries == 19
    assert result.ood == {}


@given(SCORES, SCORES)
def test_mann_whitney_is_the_auroc_with_ties(inside, outside):
    value = mann_whitney(torch.tensor(inside).double(), torch.tensor(outside).double())
    assert value == pytest.approx(auroc(inside, outside), abs=1e-12)


def test_a_standard_error_needs_two_seeds():
    values = [0.71, 0.74, 0.69, 0.8]
    summary = mean_and_standard_error(values)
    assert summary == pytest.approx((np.mean(values), stats.sem(values), 4))
    assert math.isnan(mean_and_standard_error([0.5]).standard_error)
