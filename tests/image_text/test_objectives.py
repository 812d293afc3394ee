"""Losses against their definitions written out; objectives are the weighted sums they claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from laplace_metric.errors import InputError, LabelError
from laplace_metric.image_text import (
    CLIP,
    PCMEPlusPlus,
    ProLIP,
    ProLIPRegions,
    SigLIP,
    csd,
    csd_similarity,
    inclusion_loss,
    log_inclusion,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    vib_divergence,
)
from laplace_metric.image_text._head import HeadOutput
from laplace_metric.image_text._pairs import PairBatch
from laplace_metric.image_text.objectives._losses import (
    conditional_loss,
    size_loss,
    soft_contrastive_loss,
)
from laplace_metric.image_text.objectives._membership import log_membership
from tests.image_text.test_gaussians import gaussians

F64 = torch.float64
SIZES = (st.integers(1, 7), st.integers(1, 7), st.integers(0, 10_000))


def labelled(b: int, c: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    match = torch.rand(b, c, generator=g) < 0.3
    match[seed % b, seed % c] = True
    return 2 * torch.rand(b, c, generator=g, dtype=F64) - 1, match


@settings(max_examples=40, deadline=None)
@given(*SIZES, st.floats(1, 20), st.floats(-12, 3))
def test_ppcl_is_the_likelihood_of_independent_pairs(b, c, seed, a, bias):
    s, match = labelled(b, c, seed)
    logit = a * s + bias  # log(1 + exp(x)), as 1 - sigmoid(x) has few digits where x is large
    oracle = sum(
        math.log1p(math.exp(float(-logit[i, j] if match[i, j] else logit[i, j])))
        for i in range(b)
        for j in range(c)
    )
    assert float(pairwise_sigmoid_loss(s, match, a, bias)) == pytest.approx(oracle / b, rel=1e-9)


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


def test_inclusion_loss_inflates_both_variances():
    (mu_1, l_1), (mu_2, l_2) = gaussians(4, 3), gaussians(4, 3, 1)
    v_1, v_2 = (l_1.exp() / math.exp(-2), l_2.exp() / math.exp(-2))  # 1/v times exp(epsilon)
    h = log_inclusion(mu_1, v_1.log(), mu_2, v_2.log())
    h = h - log_inclusion(mu_2, v_2.log(), mu_1, v_1.log())
    oracle = -torch.sigmoid(3 * h).log().mean()
    loss = inclusion_loss(mu_1, l_1, mu_2, l_2, c=3.0, epsilon=-2.0)
    torch.testing.assert_close(loss, oracle)


@pytest.mark.parametrize(
    "loss", [pairwise_sigmoid_loss, multi_positive_infonce, soft_contrastive_loss]
)
def test_a_batch_without_a_match_is_named(loss):
    with pytest.raises(LabelError, match="no pair"):
        loss(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))


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


def batch(b: int, c: int, seed: int) -> tuple[HeadOutput, HeadOutput, PairBatch]:
    """Outputs of both sides, who matches, one pair of each image, and larger counts elsewhere."""
    g = torch.Generator().manual_seed(seed)
    sides = []
    for n in (b, c):
        raw = torch.randn(n, 4, generator=g, dtype=F64)
        sides.append(HeadOutput(raw, raw, torch.randn(n, 4, generator=g, dtype=F64) - 2))
    match = torch.rand(b, c, generator=g) < 0.4
    match[torch.arange(b), torch.arange(b) % c] = True
    pairs = torch.stack([torch.arange(b), torch.arange(b) % c], 1)
    n_images = match.sum(0) + torch.randint(1, 9, (c,), generator=g)
    return sides[0], sides[1], PairBatch(match, pairs, n_images)


@settings(max_examples=30, deadline=None)
@given(*SIZES)
def test_objectives_are_the_weighted_sums_of_their_losses(b, c, seed):
    image, text, together = batch(b, c, seed)
    match = together.match
    s = csd_similarity(image.mu, image.log_v, text.mu, text.log_v)
    vib = sum(vib_divergence(side.mu, side.log_v) for side in (image, text))
    i, j = together.pairs.T
    own = image.mu[i], image.log_v[i], text.mu[j], text.log_v[j]
    prolip = pairwise_sigmoid_loss(s, match, 10.0, -10.0) + 0.2 * vib
    prolip = prolip + 0.3 * inclusion_loss(*own, c=5.0, epsilon=-3.0)
    weights = {"inclusion": 0.3, "vib": 0.2, "c": 5.0, "epsilon": -3.0}
    inside = log_membership(image.mu, image.log_v, text.mu, text.log_v)
    texts = log_membership(text.mu, text.log_v, text.mu, text.log_v)
    log_rate = torch.tensor(1 / 0.35, dtype=F64).log()
    regions = prolip + 0.3 * pairwise_sigmoid_loss(inside, match, 0.05, 4.0)
    regions = regions + 0.7 * conditional_loss(0.05 * texts + 4, match)
    one = torch.tensor(1.0)
    regions = regions + 1.1 * size_loss(text.trace, together.n_images, one, log_rate)
    cosine = image.mu @ text.mu.mT
    distance = csd(image.mu[:, None], image.log_v[:, None], text.mu, text.log_v)
    hot = CLIP()
    hot.log_a.data.fill_(9.0)  # its temperature stays above a hundredth
    for objective, oracle in (
        (ProLIP(**weights), prolip),
        (ProLIPRegions(0.3, 0.7, 1.1, **weights), regions),
        (SigLIP(), pairwise_sigmoid_loss(cosine, match, 10.0, -10.0)),
        (CLIP(), multi_positive_infonce(cosine, match, 1 / 0.07)),
        (hot, multi_positive_infonce(cosine, match, 100.0)),
        (
            PCMEPlusPlus(0.3, vib=0.2),
            soft_contrastive_loss(distance, match, 5.0, 5.0, pseudo_weight=0.3) + 0.2 * vib,
        ),
    ):
        value = objective.double()(image, text, together).detach()
        torch.testing.assert_close(value, oracle, rtol=1e-5, atol=1e-6)
        assert type(objective)(**objective.settings).settings == objective.settings


@pytest.mark.parametrize(
    "weight", ["inclusion", "vib", "c", "masked", "membership", "conditional", "size"]
)
def test_weights_below_zero_are_named(weight):
    with pytest.raises(InputError, match=f"{weight}=-1"):
        ProLIPRegions(**{weight: -1.0})


def test_the_gradient_of_every_part_is_finite_where_variances_vanish():
    image, text, together = batch(5, 4, 1)
    tiny = [
        HeadOutput(o.inputs.float(), o.raw.float(), (o.log_v - 40).float()) for o in (image, text)
    ]
    for side in tiny:
        for part in side:
            part.requires_grad_()
    ProLIPRegions(inclusion=1.0)(*tiny, together).backward()
    assert all(bool(part.grad.isfinite().all()) for side in tiny for part in side[1:])


def test_vib_is_the_divergence_that_torch_knows():
    mu, log_v = gaussians(5, 3)
    oracle = kl_divergence(Normal(mu, (log_v / 2).exp()), Normal(0.0, 1.0)).sum(-1).mean()
    torch.testing.assert_close(vib_divergence(mu, log_v), oracle)
