"""AUROC of OOD inputs and of errors against pair counting, torchmetrics, hand-computed cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.errors import UndefinedMetricWarning
from laplace_metric.evaluation import auprc, auroc, fpr_at_tpr, r_auroc

coarse = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=25)


@settings(max_examples=80, deadline=None)
@given(inside=coarse, outside=coarse)
def test_auroc_counts_pairs(inside, outside):
    pairs = [(b > a) + 0.5 * (a == b) for a in inside for b in outside]
    assert auroc(inside, outside) == pytest.approx(np.mean(pairs))


@settings(max_examples=80, deadline=None)
@given(inside=coarse, outside=coarse, tpr=st.sampled_from([0.5, 0.8, 0.95]))
def test_fpr_tries_every_threshold(inside, outside, tpr):
    inside, outside = np.array(inside), np.array(outside)
    rates = [np.mean(inside >= t) for t in outside if np.mean(outside >= t) >= tpr]
    assert fpr_at_tpr(inside, outside, tpr) == pytest.approx(min(rates))


@settings(max_examples=80, deadline=None)
@given(inside=coarse, outside=coarse)
def test_auprc_is_average_precision(inside, outside):
    inside, outside = np.array(inside), np.array(outside)
    total, before = 0.0, 0.0
    for t in sorted(set(inside) | set(outside), reverse=True):
        hits, false = np.sum(outside >= t), np.sum(inside >= t)
        recall = hits / len(outside)
        total += (recall - before) * hits / (hits + false)
        before = recall
    assert auprc(inside, outside) == pytest.approx(total)


def test_fpr_at_exactly_95_percent():
    """19 of 20 found is 95 %: the twentieth, most hidden one does not count."""
    outside = torch.cat([torch.tensor([-1.0]), torch.arange(10.0, 29.0)])
    assert fpr_at_tpr(torch.arange(8.0), outside) == 0.0


def test_scores_are_ranked_as_they_are():
    """A sigmoid would map these to ones; float32 would map them to one value."""
    inside = torch.tensor([1e8, 1e8 + 1], dtype=torch.float64)
    assert auroc(inside, inside + 2) == 1.0
    assert auroc(1e3 * torch.rand(50) + 1e3, 1e3 * torch.rand(50) + 3e3) == 1.0
    assert auroc(-torch.rand(50), -2 - torch.rand(50)) == 0.0


def test_counts_pairs_of_wrong_and_right_queries():
    draw = np.random.default_rng(0)
    uncertainty, correct = draw.integers(0, 9, 60), draw.integers(0, 2, 60)
    wrong, right = uncertainty[correct == 0], uncertainty[correct == 1]
    pairs = [(w > r) + 0.5 * (w == r) for w in wrong for r in right]
    assert r_auroc(uncertainty, correct) == pytest.approx(np.mean(pairs))
    assert r_auroc(uncertainty, correct.astype(bool)) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize(("correct", "state"), [([1, 1], "right"), ([0, 0], "wrong")])
def test_undefined_is_nan_with_a_warning(correct, state):
    with pytest.warns(UndefinedMetricWarning, match=f"all 2.*{state}"):
        assert math.isnan(r_auroc([0.1, 0.2], correct))
