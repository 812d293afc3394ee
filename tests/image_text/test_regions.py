"""Regions: membership against Monte Carlo, autograd and Bayes' rule; conditionals by counting."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.image_text import _objectives as _regions
from laplace_metric.image_text._objectives import conditional_loss, log_membership, size_loss

F64 = torch.float64


def gaussians(n: int, d: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, n, d, generator=g, dtype=F64) - torch.tensor([[[0.0]], [[1.0]]]))


def brute(mu, log_v, mu_t, log_v_t):
    """The closed form, all pairs at once, for autograd."""
    v = log_v.exp()[:, None] + log_v_t.exp()
    d = mu[:, None] - mu_t
    return ((log_v_t - v.log() - d.square() / v) / 2).sum(-1)


def test_membership_is_the_mean_of_the_region_under_the_input():
    x, t = gaussians(3, 2, 0), gaussians(4, 2, 1)
    g = torch.Generator().manual_seed(2)
    draws = x[0] + (x[1] / 2).exp() * torch.randn(400_000, 3, 2, generator=g, dtype=F64)
    d = draws[:, :, None] - t[0]  # [draws, 3, 4, 2]
    region = (-d.square() / t[1].exp() / 2).sum(-1).exp()
    torch.testing.assert_close(log_membership(*x, *t).exp(), region.mean(0), atol=2e-3, rtol=0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10_000))
def test_value_and_gradient_are_those_of_the_closed_form(b, c, d, seed):
    rows = [*gaussians(b, d, seed), *gaussians(c, d, seed + 1)]
    ours = [row.clone().requires_grad_() for row in rows]
    theirs = [row.clone().requires_grad_() for row in rows]
    weights = torch.randn(b, c, generator=torch.Generator().manual_seed(seed), dtype=F64)
    value, oracle = log_membership(*ours), brute(*theirs)
    torch.testing.assert_close(value, oracle)
    assert bool((value <= 0).all())
    (value * weights).sum().backward()
    (oracle * weights).sum().backward()
    for a, b_ in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b_.grad)


def test_blocks_change_nothing(monkeypatch):
    rows = [*gaussians(7, 3, 0), *gaussians(5, 3, 1)]
    at_once = [row.clone().requires_grad_() for row in rows]
    log_membership(*at_once).square().sum().backward()
    monkeypatch.setattr(_regions, "BLOCK_BYTES", 5 * 3 * 8 * 2)
    in_blocks = [row.clone().requires_grad_() for row in rows]
    log_membership(*in_blocks).square().sum().backward()
    for a, b in zip(at_once, in_blocks, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10_000))
def test_bayes_rule_holds_with_the_volume_as_prior(c, d, seed):
    mu, log_v = gaussians(c, d, seed)
    m, log_volume = log_membership(mu, log_v, mu, log_v), log_v.sum(1) / 2
    torch.testing.assert_close(m - m.mT, log_volume - log_volume[:, None])  # [u, t]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10_000))
def test_conditional_loss_counts_images(b, c, seed):
    g = torch.Generator().manual_seed(seed)
    match, logit = torch.rand(b, c, generator=g) < 0.5, torch.randn(c, c, generator=g, dtype=F64)
    images = [set(match[:, t].nonzero().flatten().tolist()) for t in range(c)]
    total = torch.zeros((), dtype=F64)
    for u in range(c):
        for t in range(c):
            if t != u and images[u]:
                p, q = len(images[t] & images[u]) / len(images[u]), logit[u, t].sigmoid()
                total = total - p * q.log() - (1 - p) * (1 - q).log()
    torch.testing.assert_close(conditional_loss(logit, match), total / c)


def test_size_loss_is_the_poisson_likelihood_and_least_at_the_truth():
    g = torch.Generator().manual_seed(0)
    trace, k, c = torch.rand(5, generator=g, dtype=F64) + 0.1, torch.tensor(1.5), torch.tensor(2.0)
    n = torch.randint(1, 30, (5,), generator=g)
    log_p = torch.distributions.Poisson(c.exp() * trace**k).log_prob(n.to(F64))
    expected = -(log_p + torch.lgamma(n + 1.0)).div(n).sum() / (1 / n).sum()
    torch.testing.assert_close(size_loss(trace, n, k, c), expected, check_dtype=False)
    trace.requires_grad_()
    at_the_truth = (n / c.exp()) ** (1 / k)
    loss = size_loss(at_the_truth.to(F64).requires_grad_(), n, k, c)
    assert bool(loss < size_loss(trace, n, k, c))


@pytest.mark.parametrize("log_v", [-30.0, 12.0])
def test_float32_agrees_with_float64_at_tiny_and_huge_variances(log_v):
    (mu, own), (mu_t, text) = gaussians(4, 8, 0), gaussians(3, 8, 1)
    rows = [mu, own + log_v, mu_t, text + log_v]
    single = [row.float().requires_grad_() for row in rows]
    value = log_membership(*single)
    torch.testing.assert_close(value.double(), log_membership(*rows), rtol=1e-5, atol=1e-4)
    value.sum().backward()
    assert all(bool(row.grad.isfinite().all()) for row in single)
