"""The retrieval benchmarks: what they compute, and what pages say of their records."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.datasets import load
from benchmarks.records import read_record, thousandths
from benchmarks.retrieval import evidence, guarantees, problems, twenty
from benchmarks.retrieval.rows import record_rows
from laplace_metric import LaplaceEmbedder

PAGE = Path(problems.__file__).with_name("README.md")


def test_the_code_of_the_page_runs():
    """On digits in the place of the reader's data."""
    train, test = load("digits"), load("digits", "test")
    x, y = (part.pixels(slice(None)).flatten(1) for part in (train, test))
    scope = {
        "embedder": LaplaceEmbedder.from_embeddings(x, train.labels),
        "gallery": x,
        "labels": train.labels,
        "held_out": y[:400],
        "held_out_labels": test.labels[:400],
        "queries": y[400:],
    }
    folder = Path.cwd()
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S):
        exec(compile(block, str(PAGE), "exec"), scope)
    assert Path.cwd() == folder
    assert "answers with the label if its probability is at least" in str(scope["rule"])


def test_cross_fitted_guarantees_were_broken_no_more_often_than_their_level():
    for row in (row for row in read_record("fitted")["rows"] if row["cross_fit"]):
        told = {name: found for name, found in row.items() if isinstance(found, dict)}
        assert row["runs"] >= 1_000
        assert len(told) == 7
        for name, found in told.items():
            assert found["low"] <= 0.05, (row["world"], row["n"], name)
            assert found["broken"] <= 0.05, (row["world"], row["n"], name)
        assert row["world"] == "constant" or row["sets"] > 0.9


def test_the_truth_of_a_mixture():
    """Its chances are those of the labels that it draws; a guarantee is judged by them."""
    world, g = guarantees.Mixture.of("many errors"), np.random.default_rng(0)
    drawn = world.draw(g, 40_000)
    right = world.right(world.hits.voted.labels[:, 0]).mean()
    assert abs(drawn.match[:, 0].mean() - right) < 3 * 0.5 / 200
    assert abs(drawn.known.mean() - world.posterior.sum(1).mean()) < 3 * 0.5 / 200
    row = guarantees.fitted(guarantees.Mixture.of("constant"), 100, 20, 5)
    assert row["match, 0.8"]["broken"] == row["match, 0.8"]["made"]


def test_the_risk_coverage_curve_is_the_mean_of_its_errors():
    correct, sure = np.array([True, False, True, True]), np.array([0.9, 0.2, 0.8, 0.1])
    expected = np.mean([0, 0, 1 / 3, 1 / 4])
    assert evidence.aurc(correct, sure) == pytest.approx(expected)


def test_what_is_said_of_rivals_is_what_was_measured():
    """Ahead of all with the same labels on five rows, level on four; little by variance."""
    rows = read_record("evidence")["rows"]
    assert len(rows) == 9
    for row in rows:
        ahead = row[f"ahead: {evidence.best_rival(row)}"]
        if row["problem"] in {"fashion-mnist", "cifar10", "emoji", "texts"}:
            assert 0 < ahead["mean"] < ahead["half"], row["problem"]
        else:
            assert max(ahead["half"], 0.0075) < ahead["mean"] < 0.0495, row["problem"]
        assert -0.0025 < row["gain: posterior variance"]["mean"] < 0.0085, row["problem"]
        accuracy = {n: row[f"{n}: accuracy"]["mean"] for n in ("vote", "probe", "LDA", "ours")}
        assert accuracy["ours"] > max(accuracy.values()) - 0.003, row["problem"]
        area = {n: row[f"{n}: aurc"]["mean"] for n in ("vote", "probe", "LDA", "ours")}
        assert area["ours"] == min(area.values()), row["problem"]
        assert row["+ class model"]["mean"] > row["+ votes"]["mean"], row["problem"]


def test_floors_of_a_calibration_error():
    """The truth's own error against a simulation by hand; two numbers cost more, and less and less.

    A shift of the log odds by its standard error 1 / sqrt(n mean p (1 - p)) costs, to first order,
    mean p (1 - p) times its mean size sqrt(2 / pi), and cannot be told from the first floor where
    n is large.
    """
    g = np.random.default_rng(0)
    p = 1 / (1 + np.exp(-g.normal(1, 2, 4_000)))
    by_hand = []
    for _ in range(20):
        right = g.random(len(p)) < p
        bins = np.minimum((p * 10).astype(int), 9)
        gaps = [abs((p - right)[bins == b].sum()) for b in range(10)]
        by_hand.append(sum(gaps) / len(p))
    true, few = evidence.floors(p, 100, 0)
    assert true == pytest.approx(np.mean(by_hand), rel=0.15)
    spread = (p * (1 - p)).mean()
    assert few > np.hypot(true, (2 / np.pi * spread / 100) ** 0.5) - 0.005
    many = evidence.floors(p, 4_000, 0)[1]
    assert true - 0.002 < many < true + 0.004 < few


def test_the_twenty_queries_are_drawn_before_they_are_answered():
    """The first of the order of seed 0, without the one that is left out."""
    record = read_record("twenty")
    n, shown = record["summary"]["queries"], record["shown"]
    assert len({one["row"] for one in shown}) == len(shown) == twenty.SHOWN
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: twenty.SHOWN + 1]
    ranks = np.argsort(np.argsort([one["row"] for one in shown]))
    assert any(
        (np.argsort(np.argsort(np.delete(order.numpy(), out))) == ranks).all()
        for out in range(twenty.SHOWN + 1)
    )
    assert all((one["answer"] is None) == bool(one["reason"]) for one in shown)


def test_what_is_said_of_problems_that_confirm_is_what_was_measured():
    rows = {row["problem"]: row for row in read_record("confirm")["rows"]}
    assert list(rows) == list(problems.CONFIRMING)
    for name, row in rows.items():
        ahead = row[f"ahead: {evidence.best_rival(row)}"]
        assert (ahead["mean"] > -0.002) == (name != "cell nuclei")
        assert ahead["mean"] > -0.046
        if name == "cell nuclei":
            behind = f"{thousandths(-ahead['mean'])} ± {thousandths(ahead['half'])}"
            page = (Path(problems.__file__).parent / "README.md").read_text()
            assert f"behind a probe by {behind} on the cell nuclei" in page
        gain = row["gain: posterior variance"]
        assert abs(gain["mean"]) <= max(0.001 + 5e-4, gain["half"])
        others = max(row[f"{other}: accuracy"]["mean"] for other in ("vote", "probe", "LDA"))
        assert row["ours: accuracy"]["mean"] > others - 0.003
        assert (row["ours: accuracy"]["mean"] > others) == (name != "cifar10, people")


def test_the_rank_of_an_item_in_its_class():
    rank = problems._rank_in_class(torch.tensor([1, 0, 1, 1, 0]))
    assert rank.tolist() == [0, 0, 1, 2, 1]


def test_a_problem_that_is_done_is_not_measured_again(tmp_path):
    asked = []

    def measured(name):
        asked.append(name)
        return {"problem": name}

    options = Namespace(problems=None, data=None, cache=tmp_path, output=tmp_path)
    makers = {"a": lambda _: "a", "b": lambda _: "b"}
    for _ in range(2):
        record_rows(options, "some", measured, makers)
    assert asked == ["a", "b"]
    assert read_record("some", tmp_path)["rows"] == [{"problem": "a"}, {"problem": "b"}]
