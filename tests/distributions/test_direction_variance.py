"""Combinations of the points against one product for each of them."""

import math

import pytest
import torch

from laplace_metric.distributions._direction_variance import direction_variance
from laplace_metric.distributions._half_line import half_line

SCALES = [1e-5, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e8, 1e14]


def point_by_point(u, values, q):
    """Return the moments from the first form of the integrals, a product for each point."""
    raw = u @ q.mT
    shift, second = torch.zeros_like(u), torch.zeros_like(u)
    for t, weight in half_line():
        k = 1 / (1 + 2 * t * values)
        mass = torch.exp(k.log().sum(1) / 2 - t * (u.square() * k).sum(1))[:, None]
        tilted, left = (u * k) @ q.mT, math.exp(-t)
        shift += weight / math.sqrt(math.pi * t) * (left * raw - mass * tilted)
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
    torch.testing.assert_close(of_each, same, rtol=1e-6, atol=1e-9 * float(size.min()))


def test_an_input_that_has_no_number_leaves_the_others_as_they_are():
    u, values, q = inputs(20, 1.0)
    expected = direction_variance(u, values, q)
    u[2], values[5], values[6] = math.nan, math.nan, math.inf
    found = direction_variance(u, values, q)
    assert not bool(found[[2, 5, 6]].isfinite().any())
    rest = [0, 1, 3, 4, 7]
    torch.testing.assert_close(found[rest], expected[rest], rtol=1e-6, atol=0)
