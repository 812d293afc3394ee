"""The benchmark of online Laplace: what is shared, what is chosen, what the noise does."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.engine.fitting import Fitting
from benchmarks.records import read_record, read_rows
from benchmarks.sizes import SMOKE
from benchmarks.tasks import Workspace, build
from benchmarks.variants import online, online_tables, schedule
from benchmarks.variants.noise import noise_of
from laplace_metric.datasets import ImageSet
from laplace_metric.online._online_run import OnlineRun


def images(n: int = 60) -> ImageSet:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 3
    pixels = torch.rand(n, 1, 28, 28, generator=g) * (1 + labels.view(-1, 1, 1, 1)) / 3
    return ImageSet(pixels, labels, "noise", ("a", "b", "c"))


def trainer(tmp_path: Path, seed: int = 0) -> online.Trainer:
    return online.Trainer(3, seed, tmp_path, images())


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_the_third_epoch_begins_where_plain_training_is(tmp_path, monkeypatch):
    """Without noise a line of the third epoch is plain training, bit by bit; with noise not."""
    lines = {"sharp": {"prior_precision": 1e30}, "wide": {}}
    monkeypatch.setattr(online, "ONLINE", lines)
    with pytest.warns(UserWarning, match="degenerate"):
        _, sharp, note = trainer(tmp_path).online("sharp")
    plain = trainer(tmp_path).plain()
    assert same(sharp, plain)
    assert not same(trainer(tmp_path).plain(online.SHARED), plain)
    embedder, wide, _ = trainer(tmp_path).online("wide")
    assert not same(wide, plain)
    assert len(note["losses"]) == len(note["priors"]) == 1
    x = images().pixels()
    with torch.no_grad():
        alone = online.on_head(embedder, wide[1])(wide[0](x))
        torch.testing.assert_close(alone.variance, embedder(x).variance)
    again, same_network, _ = trainer(tmp_path).online("wide")  # from the cache
    assert same(same_network, wide)
    assert torch.equal(again.posterior_.variance, embedder.posterior_.variance)


def test_a_run_measures_every_line_once(tmp_path, monkeypatch):
    monkeypatch.setattr(
        online, "ONLINE", {"prior 100": online.HUNDRED, "prior 1, from nothing": {}}
    )
    post_hoc = {"post-hoc fixed, prior by evidence": (None, 50.0)}
    monkeypatch.setattr(online, "POST_HOC", post_hoc)
    monkeypatch.setattr(online, "CHOSEN", {3: ("prior 100", *post_hoc)})
    asked = {name: images(30) for name in ("fashion-mnist", "mnist", "kmnist")}
    monkeypatch.setattr(online.Data, "read", lambda *_: online.Data(images(), asked))
    written = {}
    monkeypatch.setattr(
        online, "write_record", lambda name, content, folder=tmp_path / "results": (
            written.setdefault(name, content), online_tables.read_record,
            _write(name, content, folder),
        )[-1],
    )  # fmt: skip
    options = Namespace(data=None, cache=tmp_path, limit=30, fit=60, widths=[3], seeds=[0, 1])
    online.run(options)
    record = read_record("online", tmp_path / "results")
    assert len(record["validation"]) == 4
    assert len(record["test"]) == 6
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    online.run(options)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert [path.stem for path in after if after[path] != before[path]] == ["online"]
    (row,) = [x for x in read_rows(tmp_path / "online-validation") if x["kind"] == "post-hoc"]
    assert row["n_effective"] == 50.0
    assert row["prior_precision"] != 1.0
    monkeypatch.setattr(online_tables, "read_record", lambda _: record)
    assert "**prior 100**" in online_tables.sweep(3)
    assert "prior 100, less post-hoc fixed" in online_tables.chosen(3)


def _write(name, content, folder):
    from benchmarks.records import write_record

    return write_record(name, content, folder)


def test_what_was_asked_of_test_images_is_what_validation_images_chose():
    record = read_record("online")
    for size, names in online.CHOSEN.items():
        rule = [online.best(record["validation"], size, kind) for kind in ("online", "post-hoc")]
        assert names == (*rule[0], *rule[1])
        asked = {row["method"] for row in record["test"] if row["embedding_size"] == size}
        assert asked == {*names, "plain"}
    assert sorted(online.CHOSEN) == [3, 64]


def test_noise_is_that_of_draws():
    """Every number against 20,000 drawn heads."""
    g = torch.Generator().manual_seed(3)
    head, classes = nn.Linear(5, 4), torch.arange(300) % 3
    h = torch.randn(3, 5, generator=g)[classes] + 0.3 * torch.randn(300, 5, generator=g)
    variance = 1e-4 * torch.rand(24, generator=g)
    found = noise_of(head, variance, [(h, classes)])
    theta = nn.utils.parameters_to_vector(head.parameters()).detach()
    z = torch.nn.functional.linear(h, head.weight, head.bias).detach()
    u = nn.functional.normalize(z, dim=1)
    means = torch.stack([u[classes == c].mean(0) for c in range(3)])
    centred = means - means.mean(0)
    _, values, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[values > 1e-3 * values[0]]
    length, along, whole = torch.zeros(300), torch.zeros(len(axes)), 0.0
    draws = 20_000
    for part in torch.randn(draws, 24, generator=g).mul(variance.sqrt()).add(theta).split(500):
        weight, bias = part[:, :20].view(-1, 4, 5), part[:, 20:]
        drawn = torch.einsum("skd,nd->snk", weight, h) + bias[:, None]
        length += (drawn - z).square().sum((0, 2)) / draws
        turned = nn.functional.normalize(drawn, dim=2) - u
        along += (turned @ axes.mT).square().mean(1).sum(0) / draws
        whole += float(turned.square().sum(2).mean(1).sum() / draws)
    signal = centred.square().sum() / 3
    expected = {
        "length": float((length.sqrt() / z.norm(dim=1)).median()),
        "spread": float(along.sum() / signal),
        "outside": 1 - float(along.sum()) / whole,
    }
    for key, value in expected.items():
        near_zero = 2e-3 if key == "outside" else 0.0
        assert found[key] == pytest.approx(value, rel=0.03, abs=near_zero), key
    assert found["weakest"] >= found["spread"]
    assert noise_of(head, variance * 1e-8, [(h.abs(), classes)])["gradient"] == pytest.approx(
        1, abs=1e-3
    )


def test_a_schedule_ends_with_the_prior_of_a_post_hoc_fit(tmp_path, monkeypatch):
    size = dataclasses.replace(SMOKE, fit=100)
    space = Workspace(None, tmp_path, size, progress=False)
    fitting = Fitting(space, build("digits", space, 0), 0, 3)
    monkeypatch.setattr(schedule, "settings_of", lambda _: {"margin": 0.5, "learning_rate": 1e-3})
    monkeypatch.setattr(schedule, "PLAIN_ROUNDS", 1)
    monkeypatch.setattr(schedule, "LAST_ROUNDS", 2)
    priors = []

    def offsets(run, n_batch):
        priors.append(run.prior_precision)
        return OnlineRun._offsets(run, n_batch)

    monkeypatch.setattr(schedule.AnnealedRun, "_offsets", offsets)
    of = dict(schedule.lines(fitting))
    assert priors[:20] == [100.0] * 20
    assert priors[20:] == pytest.approx([100 ** (1 - k / 20) for k in range(1, 21)])
    found = {name: embedder.posterior_.prior_precision for name, embedder in of.items()}
    wanted = {name: 100.0 if name == "online" else 1.0 for name in of}
    for name in wanted:
        if "post hoc" in name:  # that of the trained weights
            wanted[name] = len(of[name].posterior_.mean) / float(
                of[name].posterior_.mean.double().square().sum()
            )
    assert found == pytest.approx(wanted)
    a, b = of["online"], of["online, prior 1 at the end"]
    torch.testing.assert_close(a.posterior_.mean, b.posterior_.mean)
    assert (a.posterior_.variance < b.posterior_.variance).all()
    weights = [of[name].posterior_.mean for name in ("plain, post hoc", "online, post hoc")]
    assert not torch.equal(*weights)
    assert set(schedule.METRICS) <= set(schedule.measured(a, fitting))
