"""The protocol of the comparison on digits, enlarged to the network's 28 pixels."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import benchmarks.comparison.__main__ as command
from benchmarks.comparison import figure, protocol, tables
from benchmarks.comparison.describe import WORDS
from benchmarks.comparison.methods import BASE, METHODS
from benchmarks.networks import lam_network, with_dropout
from benchmarks.records import read_record
from laplace_metric.datasets import load


def names():
    return {*METHODS, *(name for entry in METHODS.values() for name, _ in entry.derived)}


def enlarged(images):
    return dataclasses.replace(
        images, images=nn.functional.interpolate(images.pixels(), size=(28, 28))
    )


@pytest.fixture(scope="module")
def sets():
    train, test = enlarged(load("digits")), enlarged(load("digits", "test"))
    out = {"mnist": test.subset(range(40)), "kmnist": test.subset(range(40, 80))}
    return protocol.Sets(
        train.subset(range(300)), train.subset(range(300, 400)), test.subset(range(80)), out
    )


@pytest.fixture
def quick(monkeypatch):
    """Small rounds, one of them."""
    for name, value in {"ROUND": 128, "GATHERED": 200}.items():
        monkeypatch.setattr(protocol, name, value)
    monkeypatch.setattr(command, "FULL", 2)
    monkeypatch.setattr(command, "SHORT", 1)


@pytest.fixture
def runs(quick, sets, tmp_path):
    return command.Runs(tmp_path, sets, 3)


def test_a_run_is_kept_and_not_repeated(runs, monkeypatch):
    for name in (BASE, "k-nn distance", "mcinfonce"):
        runs.run(METHODS[name], 0)
    record = runs.collect()
    assert [row["method"] for row in record["rows"]] == ["k-nn distance", "mcinfonce", BASE]
    row = record["rows"][0]
    assert row["added"] == 200 * 3
    assert row["settings"] == runs.choice(METHODS["k-nn distance"])
    assert len(record["rows"][1]["losses"]) == 2

    def fail(*_):
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(command, "fit", fail)
    for name in (BASE, "k-nn distance", "mcinfonce"):
        runs.run(METHODS[name], 0)


def test_the_best_validation_is_taken(runs, monkeypatch):
    values = {0.3: 0.5, 0.5: 0.9, 0.7: 0.6, 1.0: 0.8}
    tried = [{"settings": {"margin": m}, "ausc": a} for m, a in values.items()]
    monkeypatch.setattr(command, "tune", lambda *_: tried)
    assert runs.choice(METHODS[BASE]) == {"margin": 0.5}
    assert runs.choice(METHODS["deep ensemble"]) == {"margin": 0.5}


def test_post_hoc_methods_share_a_network(runs):
    entry = METHODS["laplace, prior 1"]
    first, again = (runs._network(entry, 0, 1).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    fresh = protocol.new_network(3, 0).state_dict()
    assert any(not torch.equal(first[key], fresh[key]) for key in first)


def test_every_method_has_words_and_at_most_four_settings():
    assert WORDS.keys() == names()
    for entry in METHODS.values():
        assert isinstance(entry.grid, str) or 1 <= len(entry.grid) <= 4


def test_rounds_are_random_and_repeatable(sets, quick):
    first, second = protocol.Rounds(sets.train, 0), protocol.Rounds(sets.train, 0)
    one, other = (torch.cat([y for _, y in first]) for _ in range(2))
    assert len(one) == 128
    assert not torch.equal(one, other)
    assert torch.equal(one, torch.cat([y for _, y in second]))


def test_dropout_goes_before_every_trainable_layer_but_the_first():
    plain, with_it = lam_network(3), lam_network(3, 0.2)
    kinds = [type(layer) for layer in with_dropout(plain, 0.2)]
    assert kinds == [type(layer) for layer in with_it]


@pytest.mark.parametrize("draw", [tables.quality, tables.cost])
def test_tables_name_every_method(draw):
    assert {row["method"] for row in read_record("comparison")["rows"]} == names()
    assert all(name in draw() for name in names())


def test_the_choices_taken_are_those_that_ran():
    text = tables.choices()
    for row in read_record("comparison")["rows"]:
        grid = METHODS[row["method"]].grid if row["method"] in METHODS else ""
        if isinstance(grid, tuple) and len(grid) > 1:
            assert f"| {row['method']} | {tables.words(row['settings'])} |" in text


def test_the_figure_has_a_panel_for_each_trained_method():
    shown = [axes for axes in figure.loss_curves().axes if axes.get_visible()]
    titles = [axes.get_title().split("\n")[0] for axes in shown]
    assert titles == list(figure.trained(64))
    assert "mcinfonce" in titles
    assert "vim" not in titles
