"""The generative process draws what it says, and the metrics see a recovery up to a rotation."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from baselines.distributions import VonMisesFisher
from benchmarks.recovery import losses
from benchmarks.recovery.encoders import LOSSES, Encoder, train
from benchmarks.recovery.metrics import agreement, cosines, recovery, spread
from benchmarks.recovery.process import Process, Setting
from benchmarks.recovery.runs import ENCODER, PRINTED, SHARED, budget, recovered
from benchmarks.sizes import RECOVERY


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weighted(process, n=1_500):
    """E[mu(x).mu(x+)] of pairs by importance weights over independent candidates."""
    x, other = process.inputs(n), process.inputs(n)
    cosine = process.latents(x) @ process.latents(other).mT
    if process.setting.acceptance == "true":
        weight = torch.exp(20 * cosine)
    else:  # C(20) / C(0) = 1 / E exp(20 u.v) over uniform directions
        uniform = torch.nn.functional.normalize(torch.randn(4_000_000, process.setting.dimension))
        ratio = 1 / torch.exp(20 * uniform[:, 0].double()).mean()
        weight = 1 / (1 + torch.exp(-20 * cosine.double()) / ratio)
    close = process.mu(x) @ process.mu(other).mT
    return float((weight * close).sum() / weight.sum())


@pytest.mark.parametrize("acceptance", ["true", "published"])
def test_pairs_follow_the_acceptance(acceptance):
    process = Process(Setting(acceptance=acceptance), seed=0)
    x, positive = process.pairs(20_000)
    found = float((process.mu(x) * process.mu(positive)).sum(-1).mean())
    assert found == pytest.approx(weighted(process), abs=0.02)


@pytest.mark.parametrize("family", ["vmf", "gaussian", "laplace"])
def test_spread_is_the_expected_cosine_distance(family):
    process = Process(Setting(family=family), seed=0)
    x = process.inputs(200)
    mu, kappa = process.mu(x), process.kappa(x)
    if family == "vmf":
        expected = 1 - VonMisesFisher(mu, kappa).resultant
    else:
        draws = process.posterior(x).sample((3_000,), seed=torch.Generator().manual_seed(1))
        expected = 1 - (draws * mu).sum(-1).mean(0)
    torch.testing.assert_close(spread(process, x), expected, atol=0.03, rtol=0)


def test_a_rotated_truth_is_a_perfect_recovery():
    process = Process(Setting(), seed=0)
    x = process.inputs(1_200)
    turn = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(0))).Q
    found = recovery(process, x, process.mu(x) @ turn, process.kappa(x))
    assert found["location"]["rmse"] < 1e-5
    assert found["location"]["rank"] == pytest.approx(1, abs=1e-6)
    assert found["certainty"] == {"rmse": 0.0, "mae": 0.0, "rank": 1.0}
    assert found["spread"]["rmse"] < 0.02  # of the draws
    assert len(cosines(process.mu(x))) == 1_000 * 999 // 2


def test_agreement_tells_rmse_from_mae():
    found = agreement(torch.tensor([0.0, 0.0, 2.0]), torch.tensor([0.0, 1.0, 5.0]))
    assert found["mae"] == pytest.approx(4 / 3)
    assert found["rmse"] == pytest.approx(math.sqrt(10 / 3))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains(loss):
    process = Process(Setting(), seed=0)
    first, curve = train(process, loss, RECOVERY["smoke"], 0, progress=False)
    assert len(curve) > 10
    assert all(math.isfinite(value) for value in curve)
    again, _ = train(Process(Setting(), seed=0), loss, RECOVERY["smoke"], 0, progress=False)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_encoder_of_another_dimension_and_one_with_a_shared_backbone():
    x = Process(Setting(dimension=6), seed=0).inputs(500)
    torch.manual_seed(0)
    wide = Encoder(6, (16, 16, 16, 16), (16.0, 32.0), latent=9)
    assert wide(x).loc.shape == (500, 9)
    shared = Encoder(6, (16, 16, 16, 16), (16.0, 32.0), shared=True)
    kappa = shared(x).concentration
    assert 14 < kappa.min() < kappa.max() < 36
    kappa.sum().backward()
    assert all(p.grad is None for p in shared.location.parameters())
    with torch.no_grad():
        for parameter in shared.location.parameters():
            parameter.mul_(1.5)
    assert not torch.equal(shared(x).concentration, kappa)
    names = (f"mcinfonce, {ENCODER}8", f"mcinfonce, {SHARED}")
    sizes = [budget(name, "small") for name in names]
    assert [name for name, _ in sizes] == ["mcinfonce"] * 2
    assert [(size.latent, size.shared) for _, size in sizes] == [(8, False), (0, True)]


def test_a_kappa_that_reads_mu_keeps_its_range_while_mu_moves():
    size = replace(RECOVERY["smoke"], steps=(51, 0), shared=True, learning_rate=0.1)
    process = Process(Setting(), seed=0)
    encoder, _ = train(process, "mcinfonce", size, 0, progress=False)
    kappa = encoder(process.inputs(1_000)).concentration
    assert 14 < kappa.min() < kappa.max() < 36


def test_the_table_shows_every_printed_number():
    text = recovered()
    assert all(printed in text for printed in PRINTED.values())


def test_finished_losses_are_not_trained_again(tmp_path, monkeypatch):
    """In the order of seeds, so that an interrupted run has whole seeds."""
    asked = []

    def trained_row(loss, size, seed, progress):
        asked.append((loss, size, seed))
        return {"loss": loss, "seed": seed, "location": {}, "certainty": {}, "cpu_seconds": 1.0}

    written = {}
    monkeypatch.setattr(losses, "trained_row", trained_row)
    monkeypatch.setattr(losses, "RUNS", ("elk", "hib"))
    monkeypatch.setattr(
        losses, "write_record", lambda name, content: written.update({name: content}) or tmp_path
    )
    options = Namespace(cache=tmp_path, size="smoke", seeds=[0, 1], quiet=True)
    losses.run(options)
    assert asked == [(loss, "smoke", seed) for seed in (0, 1) for loss in losses.RUNS]
    assert not written  # a smoke run is no result
    options.size = "small"
    losses.run(options)
    losses.run(options)
    assert len(asked) == 4 * len(losses.RUNS)
    rows = written["losses"]["rows"]
    assert [(row["loss"], row["seed"]) for row in rows] == [(a, c) for a, b, c in asked[:4]]
    assert all("environment" not in row for row in rows)
