"""Runs that are kept, tunings of equal size, and numbers that pair between methods."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.engine.experiment import Experiment
from benchmarks.engine.fitting import Fitting, best, tune
from benchmarks.engine.scores import Score, detection, error_detection, histograms, roc_points
from benchmarks.engine.statistics import spearman
from benchmarks.methods import BASE, METHODS
from benchmarks.methods.code import code_of
from benchmarks.protocols import PROTOCOLS
from benchmarks.protocols.runner import Runner
from benchmarks.records import Store, thousandths
from benchmarks.registry import main
from benchmarks.sizes import SMOKE, TUNING_SEED
from benchmarks.tasks import Workspace, build
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError, LaplaceMetricError, NonFiniteError
from laplace_metric.evaluation import auroc

SIZE = dataclasses.replace(SMOKE, seeds=1)


@pytest.fixture
def space(tmp_path):
    return Workspace(None, tmp_path, SIZE, progress=False)


def test_a_run_is_kept_and_not_repeated(space, monkeypatch):
    runner = Runner(space)
    wanted = (BASE, "laplace", "k-nn distance", "mcinfonce")
    jobs = [job for job in runner.jobs([PROTOCOLS["lam"]]) if job.method in wanted]
    runner.run(jobs)
    row = runner.store.read("lam", "digits", "k-nn distance", 0)
    assert row["settings"] == best(
        runner.store.read("tuned", "digits", "k-nn distance", 100)["tried"]
    )
    assert row["cost"]["extra_parameters"] == 400 * SIZE.embedding
    assert row["cost"]["fit"]["peak_mb"] > 50
    assert {"recall@1", "r_auroc", "auroc photographs"} <= row["metrics"].keys()
    assert "ece" not in row["metrics"]
    assert row["environment"]["packages"]["torch"] == torch.__version__
    assert "ece" in runner.store.read("lam", "digits", "mcinfonce", 0)["metrics"]
    assert len(runner.store.read("lam", "digits", "mcinfonce", 0)["losses"]) == SIZE.rounds

    def fail(*_):
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(Fitting, "fit", fail)
    runner.run(jobs)


def test_one_training_serves_every_protocol_that_wants_it(space):
    runner = Runner(space)
    both = [dataclasses.replace(PROTOCOLS["lam"], tasks=PROTOCOLS["url"].tasks), PROTOCOLS["url"]]
    job = next(job for job in runner.jobs(both) if job.method == "mcinfonce")
    assert [p.name for p in job.protocols] == ["lam", "url"]
    runner.run([job])
    for name in ("lam", "url"):
        assert runner.store.has(name, "digits-unseen", "mcinfonce", 0)


def test_each_number_is_read_where_its_entry_says(space):
    task = build("digits", space, 0)
    embedder = LaplaceEmbedder(task.network(8)).fit(task.train.loader(), progress=False)
    embedding, _ = embedder.embed(task.test.loader(), progress=False)
    for number in ("uncertainty", "epistemic", "ambiguity"):
        entry = dataclasses.replace(METHODS["laplace"], number=number)
        measured = Experiment(entry, embedder, task, space, 0).known.uncertainty
        assert torch.equal(measured, getattr(embedding, number))


@pytest.mark.parametrize("name", ["digits", "digits-unseen"])
def test_a_match_is_looked_for_among_the_other_queries(space, name):
    task = build(name, space, 0)
    embedder = LaplaceEmbedder(task.network(8)).fit(task.train.loader(), progress=False)
    experiment = Experiment(METHODS["laplace, match"], embedder, task, space, 0)
    doubt = experiment.known.uncertainty
    assert ((doubt >= 0) & (doubt <= 1)).all()
    asked = torch.arange(0, len(task.test), 5)  # the first fold, searched among the others
    others = torch.ones(len(task.test), dtype=torch.bool)
    others[asked] = False
    held, gallery = task.validation, [(task.test.read(others), task.test.labels[others])]
    if task.new_classes:
        even = torch.arange(len(held)) % 2 == 0
        gallery.append((held.read(even), held.labels[even] + 50))
        held = held.subset(~even)
    inputs, labels = (torch.cat(parts) for parts in zip(*gallery, strict=True))
    index = embedder.index(inputs, labels, rank_by="mean", progress=False)
    index.calibrate(held.read(), held.labels + 50 * task.new_classes)
    expected = 1 - index.search(task.test.read(asked), k=1).match_probability[:, 0]
    torch.testing.assert_close(doubt[asked], expected.double())


def test_every_method_starts_from_the_same_weights_and_batches(space):
    fitting = Fitting(space, build("digits", space, 0), 0, 1)
    a, b = (next(iter(fitting.loaders().training))[0] for _ in range(2))
    assert torch.equal(a, b)
    state = torch.get_rng_state()
    first = fitting.network()
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(7)  # whatever was drawn before
    for p, q in zip(first.parameters(), fitting.network().parameters(), strict=True):
        assert torch.equal(p, q)
    other = dataclasses.replace(fitting, seed=1).network()
    assert not torch.equal(first[1].weight, other[1].weight)


def test_tuning_starts_with_the_defaults_and_never_sees_the_test(space):
    task = build("digits", space, 0)
    blind = dataclasses.replace(task, test=None, out=None, seen=None)
    size = dataclasses.replace(SIZE, trials=4)
    fitting = Fitting(dataclasses.replace(space, size=size), blind, 100, 1)
    for name in ("laplace, tuned", "mcinfonce", "k-nn distance", "shared-backbone ensemble"):
        entry = METHODS[name]
        network = fitting.network()
        tried = tune(entry, fitting, network)
        assert len(tried) == 4
        assert tried[0]["settings"] == entry.default
        assert tried == tune(entry, fitting, network)


def test_a_setting_that_fails_counts_as_tried(space, monkeypatch):
    def fit(*_):
        raise InputError("too large")

    monkeypatch.setattr(Fitting, "fit", fit)
    fitting = Fitting(space, build("digits", space, 0), 100, 1)
    tried = tune(METHODS["mcinfonce"], fitting, fitting.network())
    assert [one["error"] for one in tried] == ["too large"] * SIZE.trials
    assert best([{"settings": {"a": 1}, "error": ""}, {"settings": {"a": 2}, "ausc": 0.1}]) == {
        "a": 2
    }


@pytest.mark.parametrize("name", METHODS)
def test_defaults_lie_in_the_space(name):
    import optuna

    entry = METHODS[name]
    if entry.default is not None and not isinstance(entry.space, str):
        assert entry.space(optuna.trial.FixedTrial(entry.default)) == entry.default


def test_replicates_of_two_methods_come_from_the_same_queries():
    right = (torch.rand(80, generator=torch.Generator().manual_seed(0)) < 0.6).double()
    first, second = torch.rand(80), torch.rand(80)
    a = error_detection(first, right, 30)["r_auroc"].replicates
    assert a == error_detection(2 * first, right, 30)["r_auroc"].replicates
    assert a != error_detection(second, right, 30)["r_auroc"].replicates
    known, ood = torch.rand(40), torch.rand(30)
    score = detection(known, ood, 10)
    assert score.value == pytest.approx(auroc(known, ood))


def test_a_score_as_json():
    content = Score(0.25, (0.2, 0.3, float("nan"))).to_json()
    assert content["value"] == 0.25
    assert content["replicates"] == [0.2, 0.3, None]
    assert 0.2 <= content["low"] <= content["high"] <= 0.3
    assert Score(float("nan")).to_json() == {"value": None}


def test_rank_correlation_is_that_of_scipy():
    generator = np.random.default_rng(1)
    for n in (3, 10, 200):
        x, y = generator.integers(0, 6, n), generator.normal(size=n)
        if len(set(x.tolist())) > 1:
            assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert np.isnan(spearman([1.0, 1.0], [1.0, 2.0]))


def test_curves_are_those_of_the_scores():
    known, ood = torch.rand(300), torch.rand(200) + 0.3
    curve = roc_points(known, ood)
    area = np.trapezoid(curve["tpr"], curve["fpr"])
    assert area == pytest.approx(auroc(known, ood), abs=0.02)
    limits = torch.cat([known, ood, torch.tensor([2.0])])[:, None]
    flagged, found = ((scores >= limits).double().mean(1) for scores in (known, ood))
    highest = [float(found[flagged <= x + 1e-9].max()) for x in curve["fpr"]]
    assert curve["tpr"] == pytest.approx(highest, abs=1e-4)
    shares = histograms(known, {"far": ood})["shares"]
    assert {name: pytest.approx(1, abs=1e-3) for name in shares} == {
        name: sum(values) for name, values in shares.items()
    }


def test_runs_of_other_settings_are_refused(tmp_path):
    store = Store(tmp_path)
    store.write({"settings": {"k": 1}}, "lam", "digits", "a b", 0)
    assert store.has("lam", "digits", "a b", 0)
    store.expect({"k": 1}, "settings", "lam", "digits", "a b", 0)
    with pytest.raises(InputError, match=r"settings \{'k': 1\}.*not \{'k': 2\}"):
        store.expect({"k": 2}, "settings", "lam", "digits", "a b", 0)
    with pytest.raises(InputError, match="Delete it"):
        store.expect({}, "settings", "lam", "digits", "a b", 0)


def test_interrupted_work_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    done = []

    def do(self, job, _task):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(job.method)
        size = dataclasses.asdict(self.space.size)
        content = {"settings": {}, "size": size, "code": code_of(job.method)}
        self.store.write(content, "lam", job.task, job.method, job.seed)

    monkeypatch.setattr(Runner, "do", do)
    command = ["lam", "--cache", str(tmp_path), "--quiet"]
    assert main(command) == 130
    assert "kept" in capsys.readouterr().out
    first = list(done)
    done.clear()
    assert main(command) == 130
    assert not set(first) & set(done)
    assert all(json.loads(p.read_text()) for p in tmp_path.rglob("*.json"))


def test_a_method_whose_code_changed_is_measured_again_and_the_others_are_not(space, monkeypatch):
    runner = Runner(space)
    both = [j for j in runner.jobs([PROTOCOLS["lam"]]) if j.method in ("vim", "nnguide")]
    runner.run(both)
    first, second = runner.lines(both)
    row = runner.store.read("lam", "digits", "vim", 0)["metrics"]
    assert first.startswith(
        f"digits, seed 0, vim: recall@1 {thousandths(row['recall@1']['value'])}, "
    )
    assert "nnguide" in second
    done, measured = [], Runner.do
    monkeypatch.setattr(
        Runner, "do", lambda self, job, task: [done.append(job.method), measured(self, job, task)]
    )
    runner.run(both)
    assert not done
    now = lambda name: code_of(name) + ("changed" if name == "vim" else "")  # noqa: E731
    monkeypatch.setattr("benchmarks.protocols.runner.code_of", now)
    runner.run(both)
    assert done == ["vim"]
    assert runner.store.read("lam", "digits", "vim", 0)["code"] == now("vim")
    tuned = ("tuned", "digits", "vim", TUNING_SEED)
    assert runner.store.read(*tuned)["code"] == now("vim")


def test_one_that_fails_does_not_stop_the_others(space, monkeypatch):
    runner = Runner(space)
    both = [j for j in runner.jobs([PROTOCOLS["lam"]]) if j.method in ("k-nn distance", "laplace")]
    measured = Runner.do

    def do(self, job, task):
        if job.method == "laplace":
            raise NonFiniteError("no number")
        measured(self, job, task)

    monkeypatch.setattr(Runner, "do", do)
    with pytest.raises(LaplaceMetricError, match="1 of 2.*laplace: no number"):
        runner.run(both)
    assert runner.store.has("lam", "digits", "k-nn distance", 0)
