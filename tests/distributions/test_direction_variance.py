"""Combinations of the points against one product for each of them."""

import math

import pytest
import torch

from laplace_metric.distributions._direction_variance import direction_variance
from laplace_metric.distributions._half_line import half_line

SCALES = [1e-5, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e8, 1e14]


def point_by_point(u, values, q):
    """Return the moments from the first form of the integrals, a product for each point."""
    raw, unit = u @ q.mT, 1 / (1 + values.sum(1, keepdim=True))
    shift, second = raw * (1 - unit.sqrt()), raw.square() * (unit - 1)
    for point, weight in half_line():
        t, weight = point * unit, weight * unit
        k = 1 / (1 + 2 * t * values)
        mass = torch.exp(k.log().sum(1) / 2 - t[:, 0] * (u.square() * k).sum(1))[:, None]
        tilted, left = (u * k) @ q.mT, math.exp(-point)
        shift += weight / (math.pi * t).sqrt() * (left * raw - mass * tilted)
        second += weight * (mass * tilted.square() - left * raw.square())
        second += weight * mass * ((k * values) @ q.mT.square())
    return second + 2 * raw * shift


def inputs(z, unevenness, seed=0):
    """Return directions whose covariances have traces of 1e-5 to 1e14, in one basis."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    q = torch.linalg.qr(draw(z, z))[0]
    u = torch.nn.functional.normalize(draw(len(SCALES), z), dim=1)
    values = (unevenness * draw(len(SCALES), z)).exp()
    return u, values / values.sum(1, keepdim=True) * torch.tensor(SCALES)[:, None], q


@pytest.mark.parametrize("unevenness", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("z", [2, 3, 20, 100])
def test_combinations_are_as_good_as_every_point(z, unevenness):
    u, values, q = inputs(z, unevenness)
    expected = point_by_point(u, values, q)
    size = expected.mean(1, keepdim=True)
    for basis in (q, q.expand(len(u), z, z)):
        error = (direction_variance(u, values, basis) - expected).abs() / size
        assert float(error.max()) < 1e-6
    of_each = direction_variance(u @ q.mT, values, None)
    identity = torch.eye(z, dtype=torch.float64)
    same = point_by_point(u @ q.mT, values, identity)
    torch.testing.assert_close(of_each, same, rtol=1e-6, atol=1e-6 * float(size.min()))


def test_an_input_that_has_no_number_leaves_the_others_as_they_are():
    u, values, q = inputs(20, 1.0)
    expected = direction_variance(u, values, q)
    u[2], values[5], values[6] = math.nan, math.nan, math.inf
    found = direction_variance(u, values, q)
    assert not bool(found[[2, 5, 6]].isfinite().any())
    rest = [0, 1, 3, 4, 7]
    torch.testing.assert_close(found[rest], expected[rest], rtol=1e-6, atol=0)


@pytest.mark.parametrize("trace", [1e2, 1e4, 1e8, 1e30])
@pytest.mark.parametrize("z", [2, 8, 40])
def test_of_a_mean_near_0_it_is_that_of_draws(z, trace):
    g = torch.Generator().manual_seed(z)
    u, values, q = inputs(z, 1.5)
    u, values = u[:1], values[:1] / values[:1].sum() * trace
    draws = u + torch.randn(1_500_000 // z, z, generator=g, dtype=torch.float64) * values.sqrt()
    away = (torch.nn.functional.normalize(draws @ q.mT, dim=1) - u @ q.mT).square()
    error = away.std(0) / len(away) ** 0.5
    found = direction_variance(u, values, q)[0]
    assert bool(((found - away.mean(0)).abs() <= 5 * error + 1e-4).all())


@pytest.mark.parametrize("scale", [1e30, 1e90, 1e300])
@pytest.mark.parametrize("z", [2, 3, 16, 64])
def test_the_length_of_a_mean_near_0_does_not_count(z, scale):
    u, values, q = inputs(z, 1.0)
    values = values / values.sum(1, keepdim=True)
    values[:, z // 8 : 2 * (z // 8)] = 0  # a product of large numbers meets one of none
    for basis in (q, None):
        found = direction_variance(u, scale * values, basis)
        torch.testing.assert_close(found, direction_variance(u, 1e20 * values, basis))
