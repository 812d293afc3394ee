"""Closed forms of Gaussians against quadrature, Monte Carlo and autograd, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal

from laplace_metric.errors import UnknownNameError
from laplace_metric.image_text import (
    csd,
    csd_gallery,
    csd_query,
    csd_similarity,
    inclusion_difference,
    log_inclusion,
)
from laplace_metric.image_text.objectives._membership import log_membership

F64 = torch.float64


def gaussians(n: int, d: int, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(n, d, generator=g, dtype=F64), dim=-1)
    return mu, spread * torch.randn(n, d, generator=g, dtype=F64) - 1


def density(x: Tensor, mu: float, log_v: float) -> Tensor:
    return Normal(torch.tensor(mu, dtype=F64), math.exp(log_v / 2)).log_prob(x).exp()


def integral(mu_1: float, l_1: float, mu_2: float, l_2: float) -> Tensor:
    """``int p_1^2 p_2`` by the trapezoid rule over eight deviations of p_1^2 and of p_2."""
    s_1, s_2 = math.exp(l_1 / 2), math.exp(l_2 / 2)
    low, high = min(mu_1 - 9 * s_1, mu_2 - 9 * s_2), max(mu_1 + 9 * s_1, mu_2 + 9 * s_2)
    x = torch.linspace(low, high, 200_001, dtype=F64)
    return torch.trapezoid(density(x, mu_1, l_1).square() * density(x, mu_2, l_2), x)


ONE = [(0.0, 0.0, 0.0, 0.0), (0.3, -2.0, -0.4, 0.5), (1.0, 1.0, -1.0, -3.0), (0.1, -4.0, 0.2, -3.5)]


@pytest.mark.parametrize(("mu_1", "l_1", "mu_2", "l_2"), ONE)
def test_inclusion_and_its_difference_by_quadrature(mu_1, l_1, mu_2, l_2):
    values = [torch.tensor([value], dtype=F64) for value in (mu_1, l_1, mu_2, l_2)]
    forward, back = integral(mu_1, l_1, mu_2, l_2).log(), integral(mu_2, l_2, mu_1, l_1).log()
    torch.testing.assert_close(log_inclusion(*values), forward, rtol=1e-8, atol=1e-8)
    oracle = forward - back
    torch.testing.assert_close(inclusion_difference(*values), oracle, rtol=1e-7, atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10_000), st.floats(-5, 5))
def test_inclusion_sums_dimensions_and_is_scale_covariant(n, d, seed, log_scale):
    (mu_1, l_1), (mu_2, l_2) = gaussians(n, d, seed), gaussians(n, d, seed + 1)
    inc = log_inclusion(mu_1, l_1, mu_2, l_2)
    parts = [log_inclusion(*(t[:, i : i + 1] for t in (mu_1, l_1, mu_2, l_2))) for i in range(d)]
    torch.testing.assert_close(inc, torch.stack(parts).sum(0))
    k = math.exp(log_scale)  # x -> k x: each density is divided by k, dx multiplied
    moved = [k * mu_1, l_1 + 2 * log_scale, k * mu_2, l_2 + 2 * log_scale]
    torch.testing.assert_close(log_inclusion(*moved), inc - 2 * d * log_scale)
    h = inclusion_difference(mu_1, l_1, mu_2, l_2)
    torch.testing.assert_close(h, inc - log_inclusion(mu_2, l_2, mu_1, l_1))
    torch.testing.assert_close(inclusion_difference(*moved), h)
    torch.testing.assert_close(inclusion_difference(mu_2, l_2, mu_1, l_1), -h)


@pytest.mark.parametrize("level", [-30.0, -80.0, 60.0])
def test_both_are_stable_in_float32(level):
    """Where v, v^2 or 1/v leave the range of float32."""
    d = 1e-2 * math.exp(max(level, -20) / 2)
    exact = [torch.tensor([[v]], dtype=F64) for v in (0.0, level, d, level + 1.5)]
    short = [value.float() for value in exact]
    for function in (log_inclusion, inclusion_difference):
        value = function(*short).double()
        assert bool(value.isfinite().all())
        torch.testing.assert_close(value, function(*exact), rtol=1e-5, atol=1e-5)


def test_csd_by_monte_carlo():
    (mu_1, l_1), (mu_2, l_2) = gaussians(3, 4), gaussians(3, 4, 1)
    g = torch.Generator().manual_seed(0)
    z_1, z_2 = (
        mu + (log_v / 2).exp() * torch.randn(100_000, 3, 4, generator=g, dtype=F64)
        for mu, log_v in ((mu_1, l_1), (mu_2, l_2))
    )
    squared = (z_1 - z_2).square().sum(-1)
    error = (squared.mean(0) - csd(mu_1, l_1, mu_2, l_2)).abs() / (squared.std(0) / 100_000**0.5)
    assert float(error.max()) < 4


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.integers(0, 10_000))
def test_similarity_and_one_more_coordinate_rank_as_csd(b, c, d, seed):
    (mu_1, l_1), (mu_2, l_2) = gaussians(b, d, seed), gaussians(c, d, seed + 1)
    exact = csd(mu_1[:, None], l_1[:, None], mu_2, l_2)
    torch.testing.assert_close(csd_similarity(mu_1, l_1, mu_2, l_2), 1 - exact / 2)
    constant = 2 + l_1.exp().sum(1, keepdim=True)  # of a query: no order depends on it
    inner = csd_query(mu_1) @ csd_gallery(mu_2, l_2).mT
    torch.testing.assert_close(constant - 2 * inner, exact)
    apart = torch.cdist(csd_query(mu_1, "l2"), csd_gallery(mu_2, l_2, "l2")).square()
    torch.testing.assert_close(apart + l_1.exp().sum(1, keepdim=True), exact)


def test_an_unknown_engine_is_named():
    with pytest.raises(UnknownNameError, match="engine='cosine'"):
        csd_query(torch.eye(2), "cosine")


def brute(mu, log_v, mu_t, log_v_t):
    """The closed form of membership, all pairs at once, for autograd."""
    v = log_v.exp()[:, None] + log_v_t.exp()
    d = mu[:, None] - mu_t
    return ((log_v_t - v.log() - d.square() / v) / 2).sum(-1)


def test_membership_is_the_mean_of_the_region_under_the_input():
    x, t = gaussians(3, 2), gaussians(4, 2, 1)
    g = torch.Generator().manual_seed(2)
    draws = x[0] + (x[1] / 2).exp() * torch.randn(400_000, 3, 2, generator=g, dtype=F64)
    d = draws[:, :, None] - t[0]  # [draws, 3, 4, 2]
    region = (-d.square() / t[1].exp() / 2).sum(-1).exp()
    torch.testing.assert_close(log_membership(*x, *t).exp(), region.mean(0), atol=2e-3, rtol=0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10_000))
def test_membership_and_its_gradient_in_blocks_are_those_of_the_closed_form(b, c, d, seed):
    rows = [*gaussians(b, d, seed), *gaussians(c, d, seed + 1)]
    ours = [row.clone().requires_grad_() for row in rows]
    theirs = [row.clone().requires_grad_() for row in rows]
    weights = torch.randn(b, c, generator=torch.Generator().manual_seed(seed), dtype=F64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("laplace_metric._utils.blocks.BLOCK_BYTES", (1 + seed % 3) * 8 * c * d)
        value, oracle = log_membership(*ours), brute(*theirs)
        torch.testing.assert_close(value, oracle)
        (value * weights).sum().backward()
    (oracle * weights).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
