"""The benchmark of online Laplace: what is shared, and what is measured once."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import records
from benchmarks.variants import online, online_tables
from laplace_metric.datasets import ImageSet


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
    lines = {"sharp": {"prior_precision": 1e30}, "wide": {"prior_precision": 1.0}}
    monkeypatch.setattr(online, "ONLINE", lines)
    with pytest.warns(UserWarning, match="degenerate"):
        _, sharp = trainer(tmp_path).online("sharp")
    plain = trainer(tmp_path).plain()
    assert same(sharp, plain)
    assert not same(trainer(tmp_path).plain(online.SHARED), plain)
    embedder, wide = trainer(tmp_path).online("wide")
    assert not same(wide, plain)
    x = images().pixels()
    with torch.no_grad():
        alone = online.on_head(embedder, wide[1])(wide[0](x))
        torch.testing.assert_close(alone.variance, embedder(x).variance)
    again, same_network = trainer(tmp_path).online("wide")  # from the cache
    assert same(same_network, wide)
    assert torch.equal(again.posterior_.variance, embedder.posterior_.variance)


def test_a_run_measures_every_line_once(tmp_path, monkeypatch):
    monkeypatch.setattr(online, "ASKED_LINES", {3: ("prior 1000", "post-hoc fixed, prior 1")})
    asked = {name: images(30) for name in ("fashion-mnist", "mnist", "kmnist")}
    monkeypatch.setattr(online.Data, "read", lambda *_: online.Data(images(), asked))
    monkeypatch.setattr(
        online, "write_record",
        lambda name, content, folder=tmp_path / "results": records.write_record(
            name, content, folder
        ),
    )  # fmt: skip
    options = Namespace(data=None, cache=tmp_path, seeds=[0, 1])
    online.run(options)
    record = records.read_record("online", tmp_path / "results")
    assert len(record["rows"]) == 6
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    online.run(options)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert [path.stem for path in after if after[path] != before[path]] == ["online"]
    monkeypatch.setattr(online_tables, "read_record", lambda _: record)
    assert "prior 1000, less post-hoc fixed, prior 1" in online_tables.chosen(3)
