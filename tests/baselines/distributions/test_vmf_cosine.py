from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from baselines.distributions import mean_resultant_length, sample_angle
from baselines.distributions.angles import angle_slope
from baselines.distributions.vmf_normalizer import mean_resultant_slope
from laplace_metric.distributions._angle_quadrature import Angle

N = 20_000


def draws(dimension: int, kappa: float, n: int = N, seed: int = 0) -> Angle:
    k = torch.full((n,), kappa, dtype=torch.float64)
    return sample_angle(k, dimension, torch.Generator().manual_seed(seed))


def distribution_function(dimension: int, kappa: float):
    """P(angle <= a) by the trapezium rule on a fine grid around the bulk."""
    a = np.linspace(0, np.pi, 1_000_001)
    log = kappa * (np.cos(a) - 1)
    if dimension > 2:
        log = log + (dimension - 2) * np.log(np.sin(a).clip(1e-300))
    total = integrate.cumulative_trapezoid(np.exp(log - log.max()), a, initial=0)
    return lambda x: np.interp(x, a, total / total[-1])


@pytest.mark.parametrize("dimension", [2, 3, 4, 10, 128, 1024])
@pytest.mark.parametrize("kappa", [0.0, 1e-6, 1.0, 16.0, 200.0, 3000.0])
def test_angle_has_the_exact_distribution(dimension, kappa):
    """D = 128, kappa = 16 is where the approximate b gives a mean cosine of -0.33, not +0.12."""
    angle = draws(dimension, kappa)
    a = torch.atan2(angle.sine, angle.cosine).numpy()
    assert stats.kstest(a, distribution_function(dimension, kappa)).pvalue > 1e-3


@pytest.mark.parametrize("dimension", [2, 3, 5, 128, 4096])
@pytest.mark.parametrize("kappa", [0.0, 1e-30, 1e-6, 0.3, 20.0, 1e6])
def test_mean_and_variance_of_the_cosine(dimension, kappa):
    k = torch.tensor(kappa, dtype=torch.float64)
    below = 1 - draws(dimension, kappa).cosine
    error = below.mean() - (1 - mean_resultant_length(k, dimension))
    variance = mean_resultant_slope(k, dimension)
    assert float(error.abs()) < 4 * float((variance / N).sqrt()) + 1e-15
    fourth = (below - below.mean()).pow(4).mean()
    assert float((below.var() - variance).abs()) < 4 * float((fourth / N).sqrt()) + 1e-16


@pytest.mark.parametrize("dimension", [2, 3, 10])
def test_no_cancellation_at_large_concentration(dimension):
    """At kappa = 1e16 w rounds to 1; kappa sin^2 / 2 is Gamma((D-1)/2)."""
    sine = draws(dimension, 1e16).sine
    scaled = (1e16 * sine.square() / 2).numpy()
    assert stats.kstest(scaled, stats.gamma((dimension - 1) / 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("dimension", [2, 3, 4, 100])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 50.0, 1e5])
def test_gradient_to_full_precision(dimension, kappa):
    """Against 300-node quadrature of the whole tail, from the mode outwards."""
    a = draws(dimension, kappa, 64)
    k = torch.full((64,), kappa, dtype=torch.float64)
    angle = torch.atan2(a.sine, a.cosine)
    node, weight = np.polynomial.legendre.leggauss(300)
    spread = 40 / (kappa + dimension) ** 0.5
    top = (angle + spread).clamp_max(np.pi)[:, None]
    x = angle[:, None] + (top - angle[:, None]) * (torch.from_numpy(node) + 1) / 2
    log = kappa * (x.cos() - angle.cos()[:, None])
    if dimension > 2:
        log = log + (dimension - 2) * (x.sin() / angle.sin()[:, None]).clamp_min(1e-300).log()
    mean = mean_resultant_length(k, dimension)[:, None]
    inner = (x.cos() - mean) * log.exp() * torch.from_numpy(weight)
    oracle = inner.sum(1) * (top[:, 0] - angle) / 2
    size = (mean_resultant_slope(k, dimension).sqrt() / kappa).max()
    slope = angle_slope(a, k, dimension)
    error = (slope - oracle).abs() / (oracle.abs() + float(size))
    assert float(error[angle > 0.1 * (kappa + 1) ** -0.5].max()) < 1e-5
