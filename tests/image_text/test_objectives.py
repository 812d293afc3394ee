"""An objective is the weighted sum that it says, of a batch of any shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.image_text import (
    CLIP,
    PCMEPlusPlus,
    ProLIP,
    SigLIP,
    csd,
    csd_similarity,
    entailed,
    inclusion_loss,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    soft_contrastive_loss,
    vib_divergence,
)
from laplace_metric.image_text._heads import HeadOutput

F64 = torch.float64


def batch(b: int, c: int, seed: int) -> tuple[HeadOutput, HeadOutput, Tensor, Tensor]:
    """Outputs of both sides, who matches, and one pair of each image."""
    g = torch.Generator().manual_seed(seed)
    sides = []
    for n in (b, c):
        raw = torch.randn(n, 4, generator=g, dtype=F64)
        sides.append(HeadOutput(raw, raw, torch.randn(n, 4, generator=g, dtype=F64) - 2))
    match = torch.rand(b, c, generator=g) < 0.4
    match[torch.arange(b), torch.arange(b) % c] = True
    return sides[0], sides[1], match, torch.stack([torch.arange(b), torch.arange(b) % c], 1)


SIZES = (st.integers(1, 6), st.integers(1, 6), st.integers(0, 10_000))


@settings(max_examples=30, deadline=None)
@given(*SIZES)
def test_prolip_is_the_weighted_sum_of_its_parts(b, c, seed):
    image, text, match, pairs = batch(b, c, seed)
    objective = ProLIP(inclusion=0.3, entailment=0.7, vib=0.2, c=5.0, epsilon=-3.0).double()
    s = csd_similarity(image.mu, image.log_v, text.mu, text.log_v)
    oracle = pairwise_sigmoid_loss(s, match, 10.0, -10.0)
    i, j = pairs.T
    own = image.mu[i], image.log_v[i], text.mu[j], text.log_v[j]
    oracle = oracle + 0.3 * inclusion_loss(*own, c=5.0, epsilon=-3.0)
    t, u = entailed(match).T
    if len(t):
        both = text.mu[t], text.log_v[t], text.mu[u], text.log_v[u]
        oracle = oracle + 0.7 * inclusion_loss(*both, c=0.5, epsilon=-3.0)
    divergences = [vib_divergence(side.mu, side.log_v) for side in (image, text)]
    oracle = oracle + 0.2 * sum(divergences)
    torch.testing.assert_close(
        objective(image, text, match, pairs).detach(), oracle, rtol=1e-5, atol=1e-7
    )


@settings(max_examples=30, deadline=None)
@given(*SIZES)
def test_baselines_are_their_losses(b, c, seed):
    image, text, match, pairs = batch(b, c, seed)
    cosine = image.mu @ text.mu.mT
    siglip = pairwise_sigmoid_loss(cosine, match, 10.0, -10.0)
    clip = multi_positive_infonce(cosine, match, 1 / 0.07)
    distance = csd(image.mu[:, None], image.log_v[:, None], text.mu, text.log_v)
    soft = soft_contrastive_loss(distance, match, 5.0, 5.0, pseudo_weight=0.3)
    soft = soft + 0.2 * sum(vib_divergence(side.mu, side.log_v) for side in (image, text))
    cases = ((SigLIP(), siglip), (CLIP(), clip), (PCMEPlusPlus(0.3, vib=0.2), soft))
    for objective, oracle in cases:
        value = objective.double()(image, text, match, pairs).detach()
        torch.testing.assert_close(value, oracle, rtol=1e-5, atol=1e-7)


def test_the_temperature_of_clip_stays_above_a_hundredth():
    image, text, match, pairs = batch(4, 4, 0)
    hot = CLIP().double()
    hot.log_a.data.fill_(9.0)
    oracle = multi_positive_infonce(image.mu @ text.mu.mT, match, 100.0)
    torch.testing.assert_close(hot(image, text, match, pairs), oracle)


@pytest.mark.parametrize("objective", [ProLIP(0.1, 0.2, 0.3), PCMEPlusPlus(0.4), SigLIP(), CLIP()])
def test_settings_make_the_same_objective_again(objective):
    again = type(objective)(**objective.settings)
    assert again.settings == objective.settings


@pytest.mark.parametrize("weight", ["inclusion", "entailment", "contrast", "vib", "c"])
def test_weights_below_zero_are_named(weight):
    with pytest.raises(InputError, match=f"{weight}=-1"):
        ProLIP(**{weight: -1.0})


def test_the_gradient_of_every_part_is_finite_where_variances_vanish():
    image, text, match, pairs = batch(5, 4, 1)
    tiny = [
        HeadOutput(o.inputs.float(), o.raw.float(), (o.log_v - 40).float()) for o in (image, text)
    ]
    for side in tiny:
        for part in side:
            part.requires_grad_()
    with torch.random.fork_rng():
        objective = ProLIP(inclusion=1.0, entailment=1.0, contrast=1.0)
        objective(*tiny, match, pairs).backward()
    assert all(bool(part.grad.isfinite().all()) for side in tiny for part in side[1:])
