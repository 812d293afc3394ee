"""Credible caps against draws from the von Mises-Fisher that they are of."""

from __future__ import annotations

import pytest
import torch

from baselines.distributions import VonMisesFisher
from laplace_metric.calibration._conformal import credible_radius
from laplace_metric.distributions import vmf_concentration
from laplace_metric.errors import InputError

DRAWS = 10_000


@pytest.mark.parametrize("dimension", [2, 3, 16, 128])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.95])
def test_the_cap_holds_its_share_of_draws(dimension, probability):
    trace = torch.tensor([1e-3, 0.2, 3.0], dtype=torch.float64)
    radius = credible_radius(trace, dimension, probability)
    mean = torch.zeros(3, dimension, dtype=torch.float64)
    mean[:, 0] = 1
    law = VonMisesFisher(mean, vmf_concentration((1 + trace).rsqrt(), dimension))
    drawn = law.sample((DRAWS,), torch.Generator().manual_seed(0))
    share = ((drawn - mean).norm(dim=-1) <= radius).double().mean(0)
    slack = 4 * (probability * (1 - probability) / DRAWS) ** 0.5
    assert float((share - probability).abs().max()) < slack


def test_the_mean_of_the_draws_has_the_length_that_the_trace_gives():
    trace = torch.tensor([0.05, 2.0], dtype=torch.float64)
    mean = torch.eye(2, 9, dtype=torch.float64)
    law = VonMisesFisher(mean, vmf_concentration((1 + trace).rsqrt(), 9))
    drawn = law.sample((DRAWS,), torch.Generator().manual_seed(1)).mean(0).norm(dim=-1)
    torch.testing.assert_close(drawn, (1 + trace).rsqrt(), atol=0.02, rtol=0)


def test_radii_grow_with_doubt_and_with_probability_within_the_sphere():
    trace = torch.logspace(-6, 4, 21, dtype=torch.float64)
    radii = torch.stack([credible_radius(trace, 8, p) for p in (0.0, 0.3, 0.9, 1.0)])
    assert bool((radii[1:3].diff(dim=1) > 0).all())
    assert bool((radii.diff(dim=0) > 0).all())
    assert float(radii[0].max()) == 0
    torch.testing.assert_close(radii[3], torch.full_like(trace, 2.0))
    with pytest.raises(InputError, match="probability"):
        credible_radius(trace, 8, 1.1)
