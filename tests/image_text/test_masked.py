"""Inputs of which a part is hidden: the loss by hand, where they come from, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.image_text import (
    ImageTextEmbedder,
    ImageTextPairs,
    ProLIP,
)
from laplace_metric.image_text._heads import HeadOutput
from laplace_metric.image_text._training import masked_features
from laplace_metric.models import Precomputed
from tests.image_text.conftest import make_embedder, make_pairs, state

QUICK = {"batch_size": 30, "learning_rate": 0.02, "progress": False, "generator": 0}
F64 = torch.float64


def outputs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    raw, log_v = torch.randn(n, 5, generator=g, dtype=F64), torch.randn(n, 5, generator=g).double()
    return raw.requires_grad_(), (log_v - 3).requires_grad_()


def test_the_loss_and_its_gradient_are_those_of_the_sum_by_hand():
    """``alpha_2 / B sum_i log(1 + exp(-c H(Z_i, Z_i masked)))``, H of the formula (eq 4)."""
    objective = ProLIP(masked=0.7, c=3.0, epsilon=-2.0)
    (raw, log_v), (raw_m, log_v_m) = outputs(4, 0), outputs(4, 1)
    leaves = (raw, log_v, raw_m, log_v_m)
    value = objective.masked_loss(HeadOutput(raw, raw, log_v), HeadOutput(raw_m, raw_m, log_v_m))
    gradient = torch.autograd.grad(value, leaves)

    def inc(mu_1: Tensor, v_1: Tensor, mu_2: Tensor, v_2: Tensor) -> Tensor:
        wide = v_1 + 2 * v_2
        return (
            -(4 * torch.pi * v_1).log() / 2
            - (torch.pi * wide).log() / 2
            - (mu_1 - mu_2) ** 2 / wide
        )

    by_hand = torch.zeros((), dtype=F64)
    for i in range(4):
        mu, mu_m = raw[i] / raw[i].norm(), raw_m[i] / raw_m[i].norm()
        v, v_m = (log_v[i] + 2).exp(), (log_v_m[i] + 2).exp()
        h = (inc(mu, v, mu_m, v_m) - inc(mu_m, v_m, mu, v)).sum()
        by_hand = by_hand + 0.7 / 4 * (1 + (-3 * h).exp()).log()
    torch.testing.assert_close(value, by_hand)
    for mine, oracle in zip(gradient, torch.autograd.grad(by_hand, leaves), strict=True):
        torch.testing.assert_close(mine, oracle)


class Recorded(ProLIP):
    """Keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__(masked=0.5)
        self.seen: list[tuple[Tensor, ...]] = []

    def __deepcopy__(self, _: object) -> Recorded:
        return self

    def masked_loss(self, full: HeadOutput, part: HeadOutput) -> Tensor:
        value = super().masked_loss(full, part)
        self.seen.append((full.inputs.detach(), part.inputs.detach(), value.detach()))
        return value


def test_frozen_encoders_get_what_is_left_of_the_same_rows():
    """Precomputed: the masked rows are the full ones, negated, so each is found again."""
    pairs, objective = make_pairs(), Recorded()
    embedder = make_embedder(objective, layer_norm=False)
    embedder.fit(pairs, epochs=1, masked=(-pairs.images, -pairs.texts), **QUICK)
    assert len(objective.seen) == 2 * 4  # both sides of four steps
    for full, part, _ in objective.seen:
        assert bool((full == -part).all())
    only = Recorded()
    make_embedder(only).fit(pairs, epochs=1, masked=(-pairs.images, None), **QUICK)
    assert len(only.seen) == 4


def test_the_term_is_added_to_the_loss():
    """At the first step weights are the same: losses differ by the term."""
    pairs = make_pairs()
    how = {**QUICK, "batch_size": 999, "epochs": 1}
    without = make_embedder(ProLIP()).fit(pairs, **how).fitted_.losses[0]
    objective = Recorded()
    masked = (pairs.images / 2 + 1, pairs.texts.flip(1))
    with_it = make_embedder(objective).fit(pairs, masked=masked, **how).fitted_.losses[0]
    term = sum(float(value) for _, _, value in objective.seen)
    assert term > 0
    assert with_it == pytest.approx(without + term, rel=1e-6)


def test_masked_inputs_become_the_more_ambiguous():
    """Images that lost what tells classes apart; without the loss they become less so."""
    pairs = make_pairs()
    centre = pairs.images.mean(0)
    hidden = centre + 0.25 * (pairs.images - centre)
    ratios = []
    for objective in (ProLIP(), ProLIP(masked=1.0)):
        embedder = make_embedder(objective)
        masked = (hidden, None) if objective.masked else None
        embedder.fit(pairs, epochs=20, masked=masked, **QUICK)
        full, part = embedder.embed_image(pairs.images), embedder.embed_image(hidden)
        ratios.append(float((part.uncertainty / full.uncertainty).log().mean()))
    assert ratios[0] < -0.5
    assert ratios[1] > 0.2


class Halves(torch.nn.Module):
    """Trains, and masks by itself: zeros in the second half."""

    def __init__(self, size: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(size)
            self.layer = torch.nn.Linear(size, 5)
        self.shares: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def masked(self, x: Tensor, share: float) -> Tensor:
        assert self.training
        self.shares.append(share)
        half = x.clone()
        half[:, x.shape[1] // 2 :] = 0
        return self.layer(half)


def test_encoders_that_train_may_mask_themselves():
    pairs, encoders = make_pairs(), (Halves(12), Halves(7))
    objective = ProLIP(masked=0.1, masked_share=0.6)
    embedder = ImageTextEmbedder(*encoders, dim=8, objective=objective, train_encoders=True)
    embedder.fit(pairs, epochs=1, **QUICK)
    assert [encoder.shares for encoder in encoders] == [[0.6] * 4] * 2
    embedder.fit(pairs, epochs=1, masked=(pairs.images, None), **QUICK)
    assert [len(encoder.shares) for encoder in encoders] == [4, 8]  # given images, own texts


def test_a_weight_is_part_of_the_saved_objective(tmp_path):
    pairs = make_pairs()
    embedder = make_embedder(ProLIP(masked=0.25, masked_share=0.5, first_b=-3.0))
    embedder.fit(pairs, epochs=1, masked=(pairs.images, pairs.texts), **QUICK).save(tmp_path)
    kept = ImageTextEmbedder.load(tmp_path, Precomputed(), Precomputed()).objective
    assert (kept.masked, kept.masked_share, kept.first_b) == (0.25, 0.5, -3.0)


def test_an_offset_starts_where_it_is_told():
    assert float(ProLIP(first_b=-3.0).b.detach()) == -3.0
    assert float(ProLIP().b.detach()) == -10.0


def test_without_a_weight_nothing_changes():
    pairs = make_pairs()
    fits = [make_embedder(ProLIP(masked=m)) for m in (0.0, 0.5)]
    fits[0].fit(pairs, epochs=1, **QUICK)
    fits[1].fit(pairs, epochs=1, masked=(None, None), **QUICK)
    first, second = map(state, fits)
    assert all(bool((first[k] == second[k]).all()) for k in first)


def refused(match: str, objective: ProLIP, masked: object, pairs: ImageTextPairs) -> None:
    with pytest.raises(InputError, match=match):
        make_embedder(objective).fit(pairs, epochs=1, masked=masked, **QUICK)


def test_bad_masks_are_named():
    pairs, weighted = make_pairs(), ProLIP(masked=0.1)
    refused("the objective gives it no weight", ProLIP(), (pairs.images, None), pairs)
    refused("the encoder of images cannot mask: pass masked=", weighted, None, pairs)
    refused(r"masked= is no tuple \(images, texts\)", weighted, pairs.images, pairs)
    refused("masked texts has 7 inputs for 8", weighted, (None, pairs.texts[1:]), pairs)
    refused(r"features of masked images have shape \[60, 3\].*\[60, 12\]", weighted,
            (pairs.images[:, :3], None), pairs)  # fmt: skip
    for bad in ({"masked": -1.0}, {"masked_share": 1.0}, {"first_b": float("nan")}):
        with pytest.raises(InputError, match=next(iter(bad))):
            ProLIP(**bad)


def test_nothing_is_asked_where_the_objective_does_not(pairs):
    sources = masked_features(
        (Precomputed(), Precomputed()), pairs, (pairs.images, pairs.texts), None, ProLIP(),
        train=False,
    )  # fmt: skip
    assert sources == (None, None)


class Unscaled(ProLIP):
    """Gives no probability of a pair."""

    def logit_scale(self) -> None:
        return None


def test_a_posterior_needs_a_probability_of_a_pair(pairs):
    embedder = make_embedder(Unscaled()).fit(pairs, epochs=1, **QUICK)
    with pytest.raises(InputError, match="no probability of a pair, so no posterior"):
        embedder.fit_posterior(pairs)
