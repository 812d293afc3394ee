"""OOD metrics against pair counting, torchmetrics and hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.evaluation import auprc, auroc, fpr_at_tpr, roc_curve

coarse = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=25)


@settings(max_examples=80, deadline=None)
@given(known=coarse, strange=coarse)
def test_auroc_counts_pairs(known, strange):
    pairs = [(b > a) + 0.5 * (a == b) for a in known for b in strange]
    assert auroc(known, strange) == pytest.approx(np.mean(pairs))


@settings(max_examples=80, deadline=None)
@given(known=coarse, strange=coarse, tpr=st.sampled_from([0.5, 0.8, 0.95]))
def test_fpr_tries_every_threshold(known, strange, tpr):
    known, strange = np.array(known), np.array(strange)
    found = [np.mean(known >= t) for t in strange if np.mean(strange >= t) >= tpr]
    assert fpr_at_tpr(known, strange, tpr) == pytest.approx(min(found))


@settings(max_examples=80, deadline=None)
@given(known=coarse, strange=coarse)
def test_auprc_is_average_precision(known, strange):
    known, strange = np.array(known), np.array(strange)
    total, before = 0.0, 0.0
    for t in sorted(set(known) | set(strange), reverse=True):
        found, false = np.sum(strange >= t), np.sum(known >= t)
        recall = found / len(strange)
        total += (recall - before) * found / (found + false)
        before = recall
    assert auprc(known, strange) == pytest.approx(total)


def test_agrees_with_torchmetrics():
    functional = pytest.importorskip("torchmetrics.functional")
    draw = torch.Generator().manual_seed(0)
    known, strange = torch.rand(300, generator=draw), torch.rand(200, generator=draw) ** 0.5
    scores, truth = torch.cat([known, strange]), torch.arange(500) >= 300
    theirs = functional.auroc(scores, truth.long(), "binary")
    assert auroc(known, strange) == pytest.approx(float(theirs), abs=1e-6)
    theirs = functional.average_precision(scores, truth.long(), "binary")
    assert auprc(known, strange) == pytest.approx(float(theirs), abs=1e-6)


def test_constant_score():
    known, strange = np.zeros(30), np.zeros(10)
    assert auroc(known, strange) == 0.5
    assert auprc(known, strange) == pytest.approx(10 / 40)
    assert fpr_at_tpr(known, strange) == 1.0


def test_perfect_and_inverted():
    known, strange = torch.arange(20.0), torch.arange(20.0) + 20
    assert (auroc(known, strange), auprc(known, strange), fpr_at_tpr(known, strange)) == (1, 1, 0)
    assert auroc(strange, known) == 0.0


def test_fpr_at_exactly_95_percent():
    """19 of 20 found is 95 %: the twentieth, most hidden one does not count."""
    strange = torch.cat([torch.tensor([-1.0]), torch.arange(10.0, 29.0)])
    assert fpr_at_tpr(torch.arange(8.0), strange) == 0.0


def test_scores_are_ranked_as_they_are():
    """A sigmoid would map these to ones; float32 would map them to one value."""
    known = torch.tensor([1e8, 1e8 + 1], dtype=torch.float64)
    assert auroc(known, known + 2) == 1.0
    assert auroc(1e3 * torch.rand(50) + 1e3, 1e3 * torch.rand(50) + 3e3) == 1.0
    assert auroc(-torch.rand(50), -2 - torch.rand(50)) == 0.0


def test_roc_curve_encloses_the_auroc():
    draw = torch.Generator().manual_seed(1)
    known, strange = torch.randn(80, generator=draw), torch.randn(60, generator=draw) + 0.5
    curve = roc_curve(known, strange)
    area = float(torch.trapezoid(curve.tpr, curve.fpr))
    assert area == pytest.approx(auroc(known, strange))
    assert curve.fpr[[0, -1]].tolist() == curve.tpr[[0, -1]].tolist() == [0.0, 1.0]
    at = curve.thresholds[10]
    assert curve.tpr[10] == pytest.approx(float((strange >= at).double().mean()))
    assert curve.fpr[10] == pytest.approx(float((known >= at).double().mean()))
    assert curve.tpr.dtype == torch.float64


@pytest.mark.parametrize("metric", [auroc, auprc, fpr_at_tpr, roc_curve])
def test_errors_name_the_argument(metric):
    with pytest.raises(InputError, match="out_scores is empty"):
        metric([0.1], [])
    with pytest.raises(NonFiniteError, match="in_scores holds 1 NaN"):
        metric([0.1, np.nan], [0.2])
    with pytest.raises(InputError, match=r"in_scores has shape \(1, 2\)"):
        metric([[0.1, 0.2]], [0.2])
    with pytest.raises(InputError, match="complex"):
        metric(torch.ones(2, dtype=torch.complex64), [0.2])


def test_tpr_must_be_a_share():
    with pytest.raises(InputError, match="tpr=95"):
        fpr_at_tpr([0.1], [0.2], tpr=95)
