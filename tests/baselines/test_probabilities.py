"""Entropy and its relatives against explicit sums in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from baselines.base.probabilities import (
    disagreement,
    entropy,
    jensen_shannon,
    log_mean_exp,
    log_mean_softmax,
    mean_field,
)
from laplace_metric.errors import UnknownNameError


@pytest.fixture
def logits():
    g = torch.Generator().manual_seed(0)
    return 3 * torch.randn(6, 5, 4, generator=g, dtype=torch.float64)


def probabilities(logits):
    e = np.exp(logits.numpy())
    return e / e.sum(-1, keepdims=True)


def test_entropy(logits):
    expected = stats.entropy(probabilities(logits), axis=-1)
    np.testing.assert_allclose(entropy(logits).numpy(), expected, rtol=1e-12)
    assert torch.equal(entropy(torch.tensor([[0.0, -1e4], [1e4, 0.0]])), torch.zeros(2))
    assert entropy(torch.full((3,), 5.0)).item() == pytest.approx(math.log(3))


def test_means(logits):
    mean = probabilities(logits).mean(0)
    np.testing.assert_allclose(log_mean_softmax(logits).exp().numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(
        log_mean_exp(logits).numpy(), np.log(np.exp(logits.numpy()).mean(0)), rtol=1e-12
    )
    assert torch.isfinite(log_mean_exp(torch.full((2, 3), 1e4))).all()


def test_jensen_shannon(logits):
    """The mean Kullback-Leibler divergence of the members from their mean."""
    p = probabilities(logits)
    expected = np.mean([stats.entropy(member, p.mean(0), axis=-1) for member in p], axis=0)
    np.testing.assert_allclose(jensen_shannon(logits).numpy(), expected, rtol=1e-10)
    np.testing.assert_allclose(disagreement(logits, "jensen_shannon").numpy(), expected, rtol=1e-10)
    expected = stats.entropy(p.mean(0), axis=-1)
    np.testing.assert_allclose(disagreement(logits, "entropy").numpy(), expected, rtol=1e-10)
    with pytest.raises(UnknownNameError, match="'entropy', 'jensen_shannon'"):
        disagreement(logits, "variance")


@pytest.mark.parametrize("variance", [0.0, 0.5, 4.0])
def test_mean_field_is_near_the_integral(variance):
    """Two classes, one logit N(m, v), the other 0: MacKay's approximation is good to 0.02."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    for m in (-2.0, 0.3, 1.5):
        exact = (weights / weights.sum() / (1 + np.exp(-(m + math.sqrt(variance) * nodes)))).sum()
        logits = torch.tensor([[m, 0.0]], dtype=torch.float64)
        close = mean_field(logits, torch.tensor([variance])).softmax(-1)[0, 0].item()
        assert close == pytest.approx(exact, abs=0.02)
