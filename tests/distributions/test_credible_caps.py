from __future__ import annotations

from itertools import pairwise

import mpmath
import pytest
import torch

from baselines.distributions import VonMisesFisher, in_cap
from laplace_metric.distributions import cap_angle, cap_cosine
from laplace_metric.errors import InputError


def probability(dimension: int, kappa: float, angle: float) -> float:
    """Of the cap, by mpmath."""
    with mpmath.workdps(30):
        f = lambda a: mpmath.exp(kappa * (mpmath.cos(a) - 1)) * mpmath.sin(a) ** (dimension - 2)  # noqa: E731
        spread = 1 / mpmath.sqrt(kappa + dimension)
        n = dimension - 2
        mode = mpmath.acos(2 * kappa / (n + mpmath.hypot(n, 2 * kappa))) if n else 0
        cuts = sorted(
            {0.0, float(angle), float(mpmath.pi)}
            | {float(x) for i in range(-12, 13) if 0 < (x := mode + 1.5 * i * spread) < mpmath.pi}
        )
        parts = [mpmath.quad(f, [lo, hi]) for lo, hi in pairwise(cuts)]
        inside = sum(x for x, hi in zip(parts, cuts[1:], strict=True) if hi <= angle)
        return float(inside / sum(parts))


@pytest.mark.parametrize("dimension", [2, 3, 4, 10, 128, 1024])
@pytest.mark.parametrize("kappa", [0.0, 0.3, 20.0, 1e4])
def test_cap_has_its_probability(dimension, kappa):
    """To 1e-8, and so in both tails."""
    p = torch.tensor([1e-6, 0.05, 0.5, 0.95, 1 - 1e-6], dtype=torch.float64)
    k = torch.tensor(kappa, dtype=torch.float64)
    angle = cap_angle(k, dimension, p)
    got = [probability(dimension, kappa, float(a)) for a in angle]
    torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), p, rtol=1e-8, atol=1e-10)


def test_closed_form_in_three_dimensions():
    """``t = 1 + log(1 - p (1 - e^(-2k))) / k``."""
    k = torch.tensor([[1e-3], [1.0], [100.0], [1e6]], dtype=torch.float64)
    p = torch.tensor([0.01, 0.5, 0.99], dtype=torch.float64)
    oracle = 1 + torch.log1p(p * torch.expm1(-2 * k)) / k
    torch.testing.assert_close(cap_cosine(k, 3, p), oracle, rtol=0, atol=2e-12)


@pytest.mark.parametrize("dimension", [2, 3, 50])
def test_draws_fall_into_the_cap(dimension):
    mu = torch.eye(dimension, dtype=torch.float64)[:2]
    p = VonMisesFisher(mu, torch.tensor([0.0, 30.0], dtype=torch.float64))
    inside = in_cap(p, p.sample((20_000,), torch.Generator().manual_seed(0)), 0.8).double()
    assert float((inside.mean(0) - 0.8).abs().max()) < 4 * (0.16 / 20_000) ** 0.5
    assert bool(in_cap(p, mu, 0.1).all())
    assert not bool(in_cap(p, -mu, 0.9).any())


def test_ends_dtype_and_errors():
    k = torch.tensor([0.0, 5.0])
    assert cap_cosine(k, 4, 0.0).tolist() == [1, 1]
    torch.testing.assert_close(cap_cosine(k, 4, 1.0), -torch.ones(2))
    assert cap_angle(k, 4, 0.3).dtype == torch.float32
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="probability"):
            cap_angle(k, 4, bad)
    with pytest.raises(InputError, match="dimension"):
        cap_angle(k, 1, 0.5)
