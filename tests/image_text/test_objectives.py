"""An objective is the weighted sum that it says, of a batch of any shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.errors import InputError
from laplace_metric.image_text import (
    CLIP,
    PCMEPlusPlus,
    ProLIP,
    ProLIPRegions,
    SigLIP,
    csd,
    csd_similarity,
    inclusion_loss,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    vib_divergence,
)
from laplace_metric.image_text._csd import entailed, soft_contrastive_loss
from laplace_metric.image_text._heads import HeadOutput
from laplace_metric.image_text._objectives import conditional_loss, log_membership, size_loss
from laplace_metric.image_text._pairs import PairBatch

F64 = torch.float64


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


SIZES = (st.integers(1, 6), st.integers(1, 6), st.integers(0, 10_000))


@settings(max_examples=30, deadline=None)
@given(*SIZES)
def test_prolip_is_the_weighted_sum_of_its_parts(b, c, seed):
    image, text, together = batch(b, c, seed)
    match = together.match
    objective = ProLIP(inclusion=0.3, entailment=0.7, vib=0.2, c=5.0, epsilon=-3.0).double()
    s = csd_similarity(image.mu, image.log_v, text.mu, text.log_v)
    oracle = pairwise_sigmoid_loss(s, match, 10.0, -10.0)
    i, j = together.pairs.T
    own = image.mu[i], image.log_v[i], text.mu[j], text.log_v[j]
    oracle = oracle + 0.3 * inclusion_loss(*own, c=5.0, epsilon=-3.0)
    t, u = entailed(match).T
    if len(t):
        both = text.mu[t], text.log_v[t], text.mu[u], text.log_v[u]
        oracle = oracle + 0.7 * inclusion_loss(*both, c=0.5, epsilon=-3.0)
    divergences = [vib_divergence(side.mu, side.log_v) for side in (image, text)]
    oracle = oracle + 0.2 * sum(divergences)
    torch.testing.assert_close(
        objective(image, text, together).detach(), oracle, rtol=1e-5, atol=1e-7
    )


@settings(max_examples=30, deadline=None)
@given(*SIZES)
def test_regions_add_three_losses_to_prolip(b, c, seed):
    image, text, together = batch(b, c, seed)
    objective = ProLIPRegions(0.3, 0.7, 1.1, vib=0.2).double()
    oracle = ProLIP(vib=0.2).double()(image, text, together)
    inside = log_membership(image.mu, image.log_v, text.mu, text.log_v)
    oracle = oracle + 0.3 * pairwise_sigmoid_loss(inside, together.match, 0.05, 4.0)
    texts = log_membership(text.mu, text.log_v, text.mu, text.log_v)
    oracle = oracle + 0.7 * conditional_loss(0.05 * texts + 4, together.match)
    log_rate = torch.tensor(1 / 0.35, dtype=F64).log()
    oracle = oracle + 1.1 * size_loss(text.trace, together.n_images, torch.tensor(1.0), log_rate)
    torch.testing.assert_close(objective(image, text, together), oracle, rtol=1e-5, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(*SIZES)
def test_baselines_are_their_losses(b, c, seed):
    image, text, together = batch(b, c, seed)
    match = together.match
    cosine = image.mu @ text.mu.mT
    siglip = pairwise_sigmoid_loss(cosine, match, 10.0, -10.0)
    clip = multi_positive_infonce(cosine, match, 1 / 0.07)
    distance = csd(image.mu[:, None], image.log_v[:, None], text.mu, text.log_v)
    soft = soft_contrastive_loss(distance, match, 5.0, 5.0, pseudo_weight=0.3)
    soft = soft + 0.2 * sum(vib_divergence(side.mu, side.log_v) for side in (image, text))
    cases = ((SigLIP(), siglip), (CLIP(), clip), (PCMEPlusPlus(0.3, vib=0.2), soft))
    for objective, oracle in cases:
        value = objective.double()(image, text, together).detach()
        torch.testing.assert_close(value, oracle, rtol=1e-5, atol=1e-7)


def test_the_temperature_of_clip_stays_above_a_hundredth():
    image, text, together = batch(4, 4, 0)
    hot = CLIP().double()
    hot.log_a.data.fill_(9.0)
    oracle = multi_positive_infonce(image.mu @ text.mu.mT, together.match, 100.0)
    torch.testing.assert_close(hot(image, text, together), oracle)


@pytest.mark.parametrize(
    "objective",
    [ProLIP(0.1, 0.2, 0.3), ProLIPRegions(2, vib=3), PCMEPlusPlus(0.4), SigLIP(), CLIP()],
)
def test_settings_make_the_same_objective_again(objective):
    again = type(objective)(**objective.settings)
    assert again.settings == objective.settings


@pytest.mark.parametrize(
    "weight",
    ["inclusion", "entailment", "contrast", "vib", "c", "membership", "conditional", "size"],
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
    with torch.random.fork_rng():
        objective = ProLIPRegions(inclusion=1.0, entailment=1.0, contrast=1.0)
        objective(*tiny, together).backward()
    assert all(bool(part.grad.isfinite().all()) for side in tiny for part in side[1:])
