"""Each closed form against quadrature, Monte Carlo or its definition written out, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from laplace_metric.errors import LabelError, UnknownNameError
from laplace_metric.image_text import (
    csd,
    csd_gallery,
    csd_query,
    csd_similarity,
    inclusion_difference,
    inclusion_loss,
    log_inclusion,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    vib_divergence,
)
from laplace_metric.image_text._csd import entailed, inclusion_contrast, soft_contrastive_loss

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
def test_log_inclusion_by_quadrature(mu_1, l_1, mu_2, l_2):
    values = (torch.tensor([value], dtype=F64) for value in (mu_1, l_1, mu_2, l_2))
    oracle = integral(mu_1, l_1, mu_2, l_2).log()
    torch.testing.assert_close(log_inclusion(*values), oracle, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("mu_1", "l_1", "mu_2", "l_2"), ONE)
def test_difference_by_quadrature(mu_1, l_1, mu_2, l_2):
    values = [torch.tensor([value], dtype=F64) for value in (mu_1, l_1, mu_2, l_2)]
    forward, back = integral(mu_1, l_1, mu_2, l_2), integral(mu_2, l_2, mu_1, l_1)
    oracle = forward.log() - back.log()
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


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 50))
def test_the_sign_of_the_difference_is_of_the_widths_alone(seed, distance):
    mu, narrow = gaussians(3, 2, seed)
    wide = narrow + 0.1 + torch.rand(3, 2, generator=torch.Generator().manual_seed(seed))
    assert bool((inclusion_difference(mu, narrow, mu + distance, wide) > 0).all())


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


def labelled(b: int, c: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    match = torch.rand(b, c, generator=g) < 0.3
    match[seed % b, seed % c] = True
    return 2 * torch.rand(b, c, generator=g, dtype=F64) - 1, match


SIZES = (st.integers(1, 7), st.integers(1, 7), st.integers(0, 10_000))


@settings(max_examples=40, deadline=None)
@given(*SIZES, st.floats(1, 20), st.floats(-12, 3))
def test_ppcl_is_the_likelihood_of_independent_pairs(b, c, seed, a, bias):
    s, match = labelled(b, c, seed)
    p = torch.sigmoid(a * s + bias)
    oracle = -sum(
        math.log(float(p[i, j] if match[i, j] else 1 - p[i, j])) for i in range(b) for j in range(c)
    )
    assert float(pairwise_sigmoid_loss(s, match, a, bias)) == pytest.approx(oracle / b, rel=1e-9)


def test_negatives_cost_nothing_at_the_start():
    """With the printed sign of b they would cost 10.9 each."""
    s, match = torch.zeros(1, 2, dtype=F64), torch.tensor([[True, False]])
    s[0, 0] = 1.0
    assert float(pairwise_sigmoid_loss(s, match)) == pytest.approx(
        math.log(2) + math.exp(-10), 1e-5
    )


@settings(max_examples=40, deadline=None)
@given(*SIZES)
def test_infonce_is_the_mean_log_probability_of_matches(b, c, seed):
    s, match = labelled(b, c, seed)

    def one_way(logits: Tensor, matches: Tensor) -> float:
        values = []
        for row, own in zip(logits, matches, strict=True):
            total = math.log(sum(math.exp(float(x)) for x in row))
            logs = [float(x) - total for x, is_own in zip(row, own, strict=True) if is_own]
            values += [-float(np.mean(logs))] if logs else []
        return float(np.mean(values))

    oracle = (one_way(7 * s, match) + one_way(7 * s.mT, match.mT)) / 2
    assert float(multi_positive_infonce(s, match, 7.0)) == pytest.approx(oracle, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(*SIZES, st.floats(0, 1))
def test_soft_contrastive_with_pseudo_positives(b, c, seed, weight):
    s, match = labelled(b, c, seed)
    distance = 2 - 2 * s
    p = torch.sigmoid(4 - 3 * distance)
    first, second = [], []
    for i in range(b):
        for j in range(c):
            own = bool(match[i, j])
            of_row = any(match[i, k] and distance[i, j] <= distance[i, k] for k in range(c))
            of_column = any(match[k, j] and distance[i, j] <= distance[k, j] for k in range(b))
            hit, miss = math.log(float(p[i, j])), math.log(1 - float(p[i, j]))
            first.append(-hit if own else -miss)
            second.append(-hit if own or of_row or of_column else -miss)
    oracle = float(np.mean(first)) + weight * float(np.mean(second))
    loss = soft_contrastive_loss(distance, match, 3.0, 4.0, pseudo_weight=weight)
    assert float(loss) == pytest.approx(oracle, rel=1e-9)


def test_vib_is_the_divergence_that_torch_knows():
    mu, log_v = gaussians(5, 3)
    oracle = kl_divergence(Normal(mu, (log_v / 2).exp()), Normal(0.0, 1.0)).sum(-1).mean()
    torch.testing.assert_close(vib_divergence(mu, log_v), oracle)


def test_inclusion_loss_inflates_both_variances():
    (mu_1, l_1), (mu_2, l_2) = gaussians(4, 3), gaussians(4, 3, 1)
    v_1, v_2 = (l_1.exp() / math.exp(-2), l_2.exp() / math.exp(-2))  # 1/v times exp(epsilon)
    h = log_inclusion(mu_1, v_1.log(), mu_2, v_2.log())
    h = h - log_inclusion(mu_2, v_2.log(), mu_1, v_1.log())
    oracle = -torch.sigmoid(3 * h).log().mean()
    loss = inclusion_loss(mu_1, l_1, mu_2, l_2, c=3.0, epsilon=-2.0)
    torch.testing.assert_close(loss, oracle)


def test_a_masked_input_is_pushed_to_be_the_wider_one():
    mu, log_v = gaussians(4, 3)
    full = torch.zeros(4, 3, dtype=F64, requires_grad=True)
    masked = torch.zeros(4, 3, dtype=F64, requires_grad=True)
    inclusion_loss(mu, log_v + full, mu, log_v + masked, c=0.1).backward()
    assert full.grad is not None
    assert masked.grad is not None
    assert bool((full.grad > 0).all())
    assert bool((masked.grad < 0).all())


def test_the_contrast_knows_the_means_that_the_difference_ignores():
    (mu, log_v), (other, log_v_other) = gaussians(6, 3), gaussians(6, 3, 1)
    own = log_inclusion(mu, log_v - 2, mu, log_v)
    random = log_inclusion(mu, log_v - 2, other, log_v_other)
    oracle = -torch.sigmoid((own - random) / 3).log().mean()
    loss = inclusion_contrast(mu, log_v - 2, mu, log_v, other, log_v_other)
    torch.testing.assert_close(loss, oracle)


@pytest.mark.parametrize(
    "loss", [pairwise_sigmoid_loss, multi_positive_infonce, soft_contrastive_loss]
)
def test_a_batch_without_a_match_is_named(loss):
    with pytest.raises(LabelError, match="no pair"):
        loss(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))


@settings(max_examples=40, deadline=None)
@given(*SIZES)
def test_entailed_texts_are_proper_subsets(b, c, seed):
    _, match = labelled(b, c, seed)
    named = [{i for i in range(b) if match[i, j]} for j in range(c)]
    oracle = [[j, k] for j in range(c) for k in range(c) if named[j] and named[j] < named[k]]
    assert entailed(match).tolist() == oracle
