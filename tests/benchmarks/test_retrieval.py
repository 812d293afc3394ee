"""The retrieval benchmarks: they measure what the index does, and pages say what they measured."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from benchmarks.datasets import load
from benchmarks.records import read_record, thousandths
from benchmarks.registry import main
from benchmarks.retrieval import (
    cost,
    cross_fit,
    drift,
    evidence,
    guarantees,
    measure,
    problems,
    proof,
    split,
    strangers,
    tables,
)
from benchmarks.retrieval.drift import CHANGES, NAMES
from benchmarks.retrieval.problems import Problem
from benchmarks.sizes import DRIFT
from benchmarks.variants.defaults import PRIORS, TASKS, VARIANTS, with_prior
from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration.guarantees._test_sequences import STARTS


def test_another_prior_is_another_fit():
    torch.manual_seed(0)
    x, y, model = torch.randn(30, 4), torch.arange(30) % 3, nn.Linear(4, 3)
    once = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    of_once = {"temperature": once.posterior_.temperature}
    again = LaplaceEmbedder(model, prior_precision=7.0, **of_once).fit([(x, y)], progress=False)
    torch.testing.assert_close(with_prior(once, 7.0)(x).uncertainty, again(x).uncertainty)
    assert once.settings.prior_precision == "auto"
    assert once.posterior_.prior_precision != 7


def test_the_record_is_whole():
    rows = read_record("defaults")["rows"]
    assert len(rows) == 3 * len(TASKS) * len(VARIANTS) * len(PRIORS)
    mild = [r["negative_fraction"] for r in rows if r["variant"] == "kronecker, absolute"]
    assert 0 < max(mild) < 0.02


@pytest.fixture(scope="module")
def committed():
    return read_record("drift")


def test_smoke(real_data, tmp_path, capsys):
    words = ["--data", str(real_data), "--cache", str(tmp_path), "--size", "smoke"]
    assert main(["retrieval", "--pieces", "drift", *words]) == 0
    record = read_record("drift", tmp_path)
    assert (tmp_path / "drift.png").stat().st_size > 5_000
    assert len(record["example"]["reports"]) == DRIFT["smoke"].test // 2 // DRIFT["smoke"].window
    assert [row["stream"] for row in record["quiet"]] == [*drift.LAWS, "fashion-mnist"]
    assert [row["change"] for row in record["delays"]] == list(CHANGES)
    assert tables.false_alarms(record).count("\n") == 5
    assert tables.delays(record).count("\n") == 5
    assert "kmnist" in capsys.readouterr().out


def test_a_drifting_stream_is_quiet_first():
    size = DRIFT["smoke"]
    found = {name: {n: torch.rand(size.test) for n in NAMES} for name in ("fashion-mnist", "mnist")}
    found["mnist"] = {n: x + 5 for n, x in found["mnist"].items()}
    monitor = drift.drifting(found, "mnist", 1.0, 0, size)
    assert size.quiet < monitor.alarms[0].at < size.quiet + 20
    assert monitor.n == size.test // 2


def test_missing_values_are_the_largest():
    assert drift.middle([3, 1], 4) is None
    assert drift.middle([3, 1, 2], 4) == 2.5
    assert drift.middle([], 0) is None


def test_committed_rates_hold(committed):
    for row in committed["quiet"]:
        assert row["alarm_interval"][0] <= row["rate"]
        assert row["moved"] <= row["rate"] + 2 * row["moved_error"]
    for rate in (0.01, 0.1):
        rows = [row for row in committed["quiet"] if row["rate"] == rate]
        assert sum(row["streams"] for row in rows) >= 2_000
        assert sum(row["alarms"] for row in rows) <= rate * sum(row["streams"] for row in rows)


def test_committed_drifts_are_told(committed):
    rows = {(row["change"], row["share"]): row for row in committed["delays"]}
    assert all(rows["kmnist", share]["alarms"] == 20 for share in (0.2, 0.5))
    assert rows["kmnist", 0.5]["delay"] < rows["kmnist", 0.1]["delay"]
    assert sum(row["early"] for row in rows.values()) <= 0.01 * 20 * len(rows) + 3


PAGE = Path(problems.__file__).with_name("README.md")


@pytest.fixture(scope="module")
def digits() -> Problem:
    """Pixels as embeddings; the gallery lacks nines, OOD inputs are noise."""
    (x, y), (a, b) = (
        (part.pixels(slice(None)).flatten(1), part.labels)
        for part in (load("digits"), load("digits", "test"))
    )
    noise = torch.rand(50, 64, generator=torch.Generator().manual_seed(0))
    embedder = LaplaceEmbedder.from_embeddings(x, y, distance="arccos", structure="diag")
    return Problem("digits", embedder, (x[y < 9], y[y < 9]), (a, b), {"mnist": noise})


@pytest.fixture(scope="module")
def row(digits):
    return measure.measured(digits, splits=3, queries=500)


def test_what_is_measured_is_what_the_index_does(digits, row):
    """recall, coverage and false alarms against plain code."""
    x, y = measure.shuffled(digits.pool, 500)
    gallery, labels = digits.gallery
    unit = torch.nn.functional.normalize
    nearest = labels[(unit(x) @ unit(gallery).T).argmax(1)]
    known = y < 9
    right = float((nearest == y)[known].double().mean())
    assert row["recall@1"]["mean"] == pytest.approx(right, abs=1e-9)
    assert row["known"] == pytest.approx(float(known.double().mean()))
    assert row["top"]["mean"] == pytest.approx(float((nearest == y).double().mean()), abs=0.02)
    assert 0.84 < row["sets 0.9 coverage"]["mean"] < 0.98
    assert row["unknown of known"]["mean"] < 0.12
    assert row["unknown of mnist"]["mean"] > 0.8


def test_strangers_are_what_the_index_does(digits):
    """One split by the calls of a user; pretended ones find nothing of their own class."""
    asked = strangers.with_strangers(digits, 500)
    x, y = measure.shuffled(digits.pool, 500)
    index = digits.embedder.index(*digits.gallery, progress=False)
    assert np.array_equal(asked.judged.known, y < 9)
    assert not bool(asked.pretended.known.any())
    own = (
        digits.gallery[1].numpy()[asked.pretended.hits.positions.clip(min=0)] == y[:, None].numpy()
    )
    assert not bool((own & (asked.pretended.hits.positions >= 0)).any())
    row = strangers.one_split(asked, 0)
    ours, theirs = torch.randperm(500, generator=torch.Generator().manual_seed(0)).tensor_split(2)
    held = index.labelled_hits(x[ours], y[ours], digits.depth)
    learnt = index.learn(held, measure.K, torch.Generator().manual_seed(0))
    answered = learnt.guarantee(precision=0.8, of="match")(index.search(x[theirs], k=1)).answered
    name = "as many, not unknown, 0.8"
    let_in = float(answered[(y[theirs] == 9).numpy()].mean())
    assert row[f"{name}: answered, strangers"] == pytest.approx(let_in)
    assert row[f"{name}: made"] == 1
    assert {key.split(",")[0] for key in row} == {"none", "pretended", "as many"}


def test_a_threshold_by_hand_is_the_lowest_that_was_good_enough():
    score = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    right = np.array([True, True, False, True, False])
    assert split._naive(score, right, 0.75) == pytest.approx(0.6)
    assert split._naive(score, right, 0.9) == pytest.approx(0.8)
    assert split._naive(-score, right, 0.9) is None
    kept = split._kept("x", 0.7, 0.6, score, right)
    assert kept == {"x made": 1.0, "x accepted": 0.8, "x obtained": 0.75, "x kept": 1.0}
    assert split._kept("x", 0.8, None, score, right)["x obtained"] is None


def test_curves_and_classes():
    right = np.arange(20) < 10
    found = split.curve(-np.arange(20.0), right)
    assert found[:10] == [1.0] * 10
    assert found[-1] == 0.5
    held, labels = torch.tensor([1.0, 0.0, 1.0]).double(), torch.tensor([7, 7, 3])
    assert split._by_class(held, labels).tolist() == [1.0, 0.5]
    rank = problems._rank_in_class(torch.tensor([1, 0, 1, 1, 0]))
    assert rank.tolist() == [0, 0, 1, 2, 1]


def test_numbers_that_some_splits_lack():
    rows = [{"a": 1.0, "b": None, "c": "x"}, {"a": 3.0, "b": 2.0, "c": "y", "d": [1, 2]}]
    found = measure.summarised(rows)
    assert found["a"] == {"mean": 2.0, "sd": pytest.approx(2**0.5), "n": 2}
    assert found["b"]["n"] == 1
    assert found["c"] == {"x": 1, "y": 1}
    assert found["d"] == [1.0, 2.0]


def test_cost_in_small():
    found = cost.flat("diag", 3_000)
    assert found["same without FAISS"]
    assert set(found["seconds"]) >= {"plain FAISS", "engine", "whole search"}
    approximate = cost.approximate(3_000, 1_000)
    assert all(0.3 < part["recall@10"] <= 1 for part in approximate)
    assert cost.mapped(2_000)["bytes"] > 2_000 * (512 + 128) * 4


def test_the_code_of_the_page_runs(capsys):
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
        block = re.sub(r"monitor\.save\(.*?\)", "", block).replace("window=500", "window=30")
        exec(compile(block, str(PAGE), "exec"), scope)
    assert Path.cwd() == folder
    assert "answers with the label if its probability is at least" in capsys.readouterr().out


def test_the_page_says_what_the_record_says():
    rows = {row["problem"]: row for row in read_record("retrieval")["rows"]}
    assert list(rows) == list(problems.PROBLEMS)
    missed = []
    for name in list(problems.PROBLEMS)[:-2]:  # emoji and texts are few
        for alpha in split.ALPHAS:
            found = rows[name][f"sets {1 - alpha:g} coverage"]
            gap = abs(found["mean"] - (1 - alpha))
            assert gap < max(0.01, 4 * found["sd"] / found["n"] ** 0.5), (name, alpha)
            missed += [(name, alpha)] if gap > 0.01 else []
        assert rows[name]["unknown of known"]["mean"] == pytest.approx(0.05, abs=0.01)
    assert missed == [], "as the page says"
    front = (PAGE.parents[2] / "docs" / "match.md").read_text()
    for score in ("cosine", "match probability"):
        assert f"(AUROC {thousandths(rows['omniglot'][f'auroc {score}']['mean'])})" in front
    assert np.ceil(np.log(0.05 / STARTS) / np.log(0.99)) == 528
    assert "528 accepted" in PAGE.read_text()
    assert all(row["precision 0.99 made"]["mean"] == 0 for row in rows.values())
    assert round(norm.cdf(1.645 / 1.5**0.5), 2) == 0.91, "thresholds of a quarter, asked of a half"
    assert set(tables.TABLES) <= set(re.findall(r"<!-- table:([\w-]+) -->", PAGE.read_text()))


def test_pairs_that_calibrate_themselves_are_wrong_and_larger_classes_are_not(monkeypatch):
    """Why ``cross_index`` refuses classes of two: the labels speak against the right class."""
    monkeypatch.setattr(cross_fit, "NEW", 300)
    pairs = cross_fit.one_collection(cross_fit.World("pairs", {2: 80}, 0.6), 0)
    assert pairs["nearest is right"] > 0.9
    assert pairs["match probability"] < pairs["nearest is right"] - 0.1
    assert pairs["label sets 0.2: coverage"] < 0.7
    assert pairs["retrieval sets 0.2: coverage"] < 0.7
    larger = cross_fit.one_collection(cross_fit.World("threes", {3: 80}, 0.6), 0)
    assert abs(larger["match probability"] - larger["nearest is right"]) < 0.08
    assert larger["label sets 0.1: coverage"] > 0.85
    assert larger["retrieval sets 0.1: coverage"] > 0.85
    assert larger["unknown 0.1"] < 0.15


def test_what_is_said_of_small_collections_is_what_was_measured():
    """Means within three standard errors; broken guarantees within their level."""
    rows = {row["problem"]: row for row in read_record("cross_fit")["rows"]}
    assert set(rows) == set(cross_fit.WORLDS)
    assert {name for name, row in rows.items() if row["refused"]} == {
        "200 classes of 2",
        "20 classes of 2",
    }
    for row in (row for row in rows.values() if not row["refused"]):

        def error(key: str, row=row) -> float:
            return 3 * row[key]["sd"] / row[key]["n"] ** 0.5

        for alpha in cross_fit.ALPHAS:
            for kind in ("label", "retrieval"):
                key = f"{kind} sets {alpha:g}: coverage"
                assert row[key]["mean"] + error(key) > 1 - alpha, (row["problem"], key)
            key = f"unknown {alpha:g}"
            assert row[key]["mean"] - error(key) < alpha, (row["problem"], key)
        for target in cross_fit.TARGETS:
            assert row[f"precision {target:g}: broken, interval"][0] < 0.05
        gap = row["match probability"]["mean"] - row["nearest is right"]["mean"]
        assert abs(gap) < 0.05, row["problem"]


def test_cross_fitted_guarantees_were_broken_no_more_often_than_their_level():
    for row in (row for row in read_record("fitted")["rows"] if row["cross_fit"]):
        told = {name: found for name, found in row.items() if isinstance(found, dict)}
        assert row["runs"] >= 1_000
        assert len(told) == 7
        for name, found in told.items():
            assert found["low"] <= 0.05, (row["world"], row["n"], name)
            assert found["broken"] <= 0.05, (row["world"], row["n"], name)
        assert row["world"] == "constant" or row["sets"] > 0.9


def test_few_queries_rank_as_the_page_says():
    """The match probability with 40 queries, and the distance, of three problems."""
    rows = {row["problem"]: row["sizes"][0] for row in read_record("few")["rows"]}
    assert {size["queries"] for size in rows.values()} == {40}
    ours = [rows[name]["auroc"]["mean"] for name in ("digits", "birds", "texts")]
    gain = [rows[name]["gain"]["mean"] for name in ("digits", "birds", "texts")]
    plain = [a - b for a, b in zip(ours, gain, strict=True)]
    told = [thousandths(value) for value in (*ours, *plain)]
    page = (Path(__file__).parents[2] / "docs/questions.md").read_text()
    sentence = "AUROC of {}, of birds {} and of texts {}; the distance: {}, {} and {}"
    assert sentence.format(*told) in page
    for size in rows.values():
        assert size["gain"]["mean"] + size["gain"]["half"] > 0


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
    """Never behind one of the same information; the label on one row only."""
    rows = read_record("evidence")["rows"]
    assert len(rows) == 9
    for row in rows:
        ahead = row[f"ahead: {evidence.best_rival(row)}"]["mean"]
        assert ahead > 0, row["problem"]
        added = row["gain: posterior variance"]["mean"]
        outside = row["problem"] in {"cifar10, unseen", "omniglot"}
        most = 0.0045 if row["problem"] == "fashion-mnist, unseen" else 0.0035
        assert 0.007 < added < 0.017 if outside else added < most, row["problem"]
        accuracy = {n: row[f"{n}: accuracy"]["mean"] for n in ("vote", "probe", "LDA", "ours")}
        behind = 0.014 if row["problem"] == "cifar10, unseen" else 0.005
        assert accuracy["ours"] > max(accuracy.values()) - behind, row["problem"]
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


def test_confident_learning_puts_the_off_diagonal_of_its_joint_first():
    """By hand: means of the classes' own are .4 and .85; only the last item is off the diagonal."""
    p = np.array([[0.6, 0.4], [0.2, 0.8], *[[0.05, 0.95]] * 3, [0.45, 0.55]])
    y = np.array([0, 0, 1, 1, 1, 1])
    assert proof.confident(p, y).tolist() == [5, 1, 0, 2, 3, 4]


def test_the_twenty_queries_are_drawn_before_they_are_answered():
    """The first of the order of seed 0, without the one that is left out."""
    record = read_record("twenty")
    n, shown = record["summary"]["queries"], record["shown"]
    assert len({one["row"] for one in shown}) == len(shown) == proof.SHOWN
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: proof.SHOWN + 1]
    ranks = np.argsort(np.argsort([one["row"] for one in shown]))
    assert any(
        (np.argsort(np.argsort(np.delete(order.numpy(), out))) == ranks).all()
        for out in range(proof.SHOWN + 1)
    )
    assert all((one["answer"] is None) == bool(one["reason"]) for one in shown)


def test_what_is_said_of_problems_that_confirm_is_what_was_measured():
    rows = {row["problem"]: row for row in read_record("confirm")["rows"]}
    assert list(rows) == list(problems.CONFIRMING)
    for name, row in rows.items():
        ahead = row[f"ahead: {evidence.best_rival(row)}"]
        assert ahead["mean"] > -0.002 or (name == "cell nuclei" and ahead["mean"] > -0.014)
        assert abs(row["gain: posterior variance"]["mean"]) <= 0.003 + 5e-4
        others = max(row[f"{other}: accuracy"]["mean"] for other in ("vote", "probe", "LDA"))
        assert row["ours: accuracy"]["mean"] > others - 0.002
        assert (row["ours: accuracy"]["mean"] > others) == (name != "cifar10, people")
