"""Going on from what was learnt, on other data and other classes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from baselines import CrossEntropy, MCInfoNCE, MetricLearning
from baselines.base import Training
from laplace_metric.errors import NotFittedError

STILL = Training(epochs=1, learning_rate=1e-30)


@pytest.fixture
def pairs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator)
    return [(x, torch.arange(40) % 4)], [(x + 1, torch.arange(40) % 3)]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def test_a_concentration_head_goes_on_and_a_second_fit_does_not(pairs, model):
    first, second = pairs
    method = MCInfoNCE(model, training=Training(epochs=5, learning_rate=0.01))
    method.fit(first, progress=False)
    x = first[0][0]
    before = method(x).concentration
    method.training = STILL
    torch.testing.assert_close(method.fine_tune(second, progress=False)(x).concentration, before)
    fresh = method.fit(second, progress=False)(x).concentration
    assert not torch.allclose(fresh, before, rtol=1e-2)


def test_logits_of_other_classes_start_anew(pairs, model):
    method = CrossEntropy(model, training=STILL).fit(pairs[0], progress=False)
    weights = [p.clone() for p in method.model.parameters()]
    method.fine_tune(pairs[1], progress=False)
    assert len(method.fitted_.classes) == 3
    for before, after in zip(weights, method.model.parameters(), strict=True):
        torch.testing.assert_close(before, after)


def test_fine_tuning_learns(pairs, model):
    quick = Training(epochs=30, learning_rate=0.02)
    method = MetricLearning(model, training=quick).fit(pairs[0], progress=False)
    method.training = replace(quick, epochs=30)
    method.fine_tune(pairs[1], progress=False)
    assert method.losses_[-1] < method.losses_[0]


def test_before_fit_there_is_nothing_to_go_on_from(pairs, model):
    with pytest.raises(NotFittedError):
        MCInfoNCE(model).fine_tune(pairs[0], progress=False)
