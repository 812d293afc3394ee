"""Batches of a sampler, a whole run on few drawings, and the page's sentences on the record."""

from __future__ import annotations

import pytest
import torch

from benchmarks.posterior import miners
from benchmarks.posterior.miners import ALL, HEAD_INPUTS, MINED, MINERS, RANDOM, SAMPLED
from benchmarks.records import read_record


def test_the_sampler_gives_four_drawings_of_each_character():
    y = torch.arange(40).repeat_interleave(20)
    loader = miners.loader_of(torch.zeros(800, 1, 4, 4), y, SAMPLED, 3)
    batches = [labels for _, labels in loader]
    assert [len(labels) for labels in batches] == [miners.BATCH] * 3
    for labels in batches:
        assert labels.unique(return_counts=True)[1].tolist() == [miners.DRAWINGS] * 32
    drawn = [labels for _, labels in miners.loader_of(torch.zeros(800, 1, 4, 4), y, RANDOM, 3)]
    assert [len(labels) for labels in drawn] == [miners.BATCH] * 3


def test_a_run_on_few_drawings_has_a_row_for_each_way(monkeypatch):
    monkeypatch.setattr(miners, "EPOCHS", 1)
    monkeypatch.setattr(miners, "ITEMS", 60)
    monkeypatch.setattr(miners, "FITTED", 100)
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(800, 1, 28, 28, generator=g), torch.arange(40).repeat_interleave(20)
    state = torch.get_rng_state()
    rows = miners.measured(0, (x, y), (x[:100], y[:100]), 1)
    assert torch.equal(torch.get_rng_state(), state)
    ways = [(row["training"], row["pairs of the posterior"]) for row in rows]
    assert ways == [(RANDOM, ALL), (SAMPLED, ALL), (MINED, ALL), (MINED, MINERS)]
    for row in rows:
        assert all(0 <= row[name] <= 1 for name in (*miners.RANKINGS, HEAD_INPUTS))


def mean(training: str, key: str, pairs: str = ALL) -> float:
    rows = read_record("miners")["rows"]
    own = [
        row[key]
        for row in rows
        if (row["training"], row["pairs of the posterior"]) == (training, pairs)
    ]
    return sum(own) / len(own)


def test_miners_in_words():
    random = {key: mean(RANDOM, key) - mean(RANDOM, "mean") for key in ("noise", "posterior")}
    assert all(x == pytest.approx(0.05, abs=0.005) for x in random.values())
    for training in (SAMPLED, MINED):
        assert 0 <= mean(training, "posterior") - mean(training, "mean") < 0.0125
    for key in (*miners.RANKINGS, HEAD_INPUTS):
        assert abs(mean(MINED, key, MINERS) - mean(MINED, key)) < 0.002
