"""What each protocol measures, against the same computed another way."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.neighbors import NearestNeighbors

from baselines import MCInfoNCE, Training
from benchmarks.corruptions import TYPES
from benchmarks.datasets import load
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.fitting import Fitting
from benchmarks.engine.matching import Doubt
from benchmarks.methods import METHODS
from benchmarks.protocols import PROTOCOLS, closed_set, corruption, open_set
from benchmarks.sizes import SMOKE
from benchmarks.tasks import Part, Task, Workspace, build
from benchmarks.tasks.frozen import entropy, shares
from benchmarks.variants import people as cifar10h
from benchmarks.variants import transfer, views
from laplace_metric import LaplaceEmbedder
from laplace_metric.evaluation import auroc

SIZE = dataclasses.replace(SMOKE, queries=60, corrupted=6, resamples=5)


def experiment_of(task, tmp_path, name="mcinfonce"):
    space = Workspace(None, tmp_path, SIZE, progress=False)
    torch.manual_seed(0)
    method = MCInfoNCE(task.network(8), training=Training(epochs=2))
    method.fit([(task.train.read(), task.train.labels)], progress=False)
    return Experiment(METHODS[name], method, task, space, 0)


@pytest.fixture
def digits(tmp_path):
    return experiment_of(build("digits", Workspace(None, tmp_path, SIZE), 0), tmp_path)


@pytest.fixture
def unseen(tmp_path):
    return experiment_of(build("digits-unseen", Workspace(None, tmp_path, SIZE), 0), tmp_path)


@pytest.mark.parametrize("name", ["digits", "digits-unseen"])
def test_the_match_probability_is_that_of_the_item_that_is_judged(name, tmp_path):
    """A head of two outputs, through which an index would rank by the posterior."""
    task = build(name, Workspace(None, tmp_path, SMOKE), 0)
    x = task.train.read()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0].numel(), 2))
    embedder = LaplaceEmbedder(model).fit([(x, task.train.labels)], progress=False)
    assert embedder.index(task.test.read(), task.test.labels).rank_by == "predictive"
    doubt = Doubt(embedder, task.validation, task.new_classes)
    items, asked = (task.test.subset(torch.arange(len(task.test)) % 2 == i) for i in (0, 1))
    index = doubt.index(items)
    with torch.no_grad():
        z = [torch.nn.functional.normalize(model(one.read()), dim=1) for one in (asked, items)]
    held = torch.cdist(z[0], torch.nn.functional.normalize(index.items.encoded.mean, dim=1))
    found = index.search(asked.read(), k=1)
    assert found.positions[:, 0].tolist() == held.argmin(1).tolist()


@pytest.fixture
def patches(tmp_path):
    return experiment_of(build("photographs", Workspace(None, tmp_path, SIZE), 0), tmp_path)


@pytest.fixture
def people(real_data, tmp_path):
    """CIFAR-10H images as they are, without the encoder."""
    images = load("cifar10", "test", real_data, 200)
    part = dataclasses.replace(Part.of(images), soft=None)
    soft = dataclasses.replace(part, soft=shares(part))
    task = Task("people", "", soft, part, part, {}, lambda z: torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3072, z)))  # fmt: skip
    return experiment_of(task, tmp_path)


def test_ood_inputs_and_errors(digits):
    scores = closed_set.lam(digits).scores
    known, ood = digits.known.uncertainty, digits.ood["photographs"].uncertainty
    assert scores["auroc photographs"].value == pytest.approx(auroc(known, ood))
    assert digits.recall.value == pytest.approx(scores["recall@1"].value)
    assert len(scores["ece"].replicates) == SIZE.resamples


def test_crops_and_mixtures(unseen):
    scores = open_set.url(unseen).scores
    assert 0 <= scores["crop more uncertain"].value <= 1
    known = unseen.embed(unseen.task.seen)
    size = min(len(known.labels), len(unseen.known.labels))
    seen = unseen.embed(unseen.task.seen.spread(size)).uncertainty
    new = unseen.embed(unseen.task.test.spread(size)).uncertainty
    assert scores["new classes"].value == pytest.approx(auroc(seen, new), abs=1e-6)


def test_severity_against_mean_uncertainty():
    levels = torch.tensor([[0.0, 1, 2, 3, 4, 5], [1.0, 0, 3, 2, 5, 4]])
    assert corruption.of_means(levels) == pytest.approx(
        stats.spearmanr(range(6), levels.mean(0)).statistic
    )
    every = stats.spearmanr(np.tile(np.arange(6), 2), levels.flatten()).statistic
    assert corruption.of_all(levels) == pytest.approx(every)
    assert corruption.of_means(-levels) == -corruption.of_means(levels)
    both = torch.stack([levels, -levels], 1)
    assert corruption.average(corruption.of_means)(both) == pytest.approx(0)


def test_corrupted_images_and_the_probe(patches):
    pytest.importorskip("imagecorruptions")
    measured = corruption.measure(patches)
    assert {f"severity {kind}" for kind in TYPES} <= measured.scores.keys()
    assert all(len(curve) == 6 for curve in measured.curves["severity"].values())
    whole = patches.embed(patches.task.test.spread(SIZE.corrupted)).uncertainty.mean()
    assert measured.curves["severity"]["fog"][0] == pytest.approx(float(whole), rel=1e-3)
    assert 0.5 < measured.scores["probe accuracy"].value <= 1
    assert 0 <= measured.scores["failure p"] <= 1


def test_nearest_neighbours_with_and_without_the_uncertainty(patches):
    memory = patches.embed(patches.task.train.spread(corruption.MEMORY))
    found = corruption.detector(patches, 3)

    def distances(one, with_uncertainty):
        columns = [one.mean, one.uncertainty[:, None]] if with_uncertainty else [one.mean]
        return torch.cat(columns, 1).double().numpy()

    for name, with_uncertainty in (("k-nn", False), ("k-nn+u", True)):
        kept = distances(memory, with_uncertainty)
        centre, spread = kept.mean(0), kept.std(0, ddof=1)
        search = NearestNeighbors(n_neighbors=5).fit((kept - centre) / spread)
        known, ood = (
            torch.from_numpy(
                search.kneighbors((distances(one, with_uncertainty) - centre) / spread)[0].mean(1)
            )
            for one in (patches.known, patches.ood["negatives"])
        )
        value = found[f"{name} auroc negatives"].value
        assert value == pytest.approx(auroc(known, ood), abs=2e-3)


def test_people_and_credible_sets(people):
    measured = closed_set.human(people)
    expected = stats.spearmanr(entropy(people.task.test), people.known.uncertainty).statistic
    assert measured.scores["entropy rank"].value == pytest.approx(expected)
    strips = measured.pictures["credible"]
    assert len(strips) == 2 * closed_set.ENDS
    assert "°: " in strips[0]["uncertainty"]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_name_methods_and_tasks_that_exist(name):
    protocol = PROTOCOLS[name]
    assert set(protocol.methods) <= METHODS.keys()
    from benchmarks.tasks import TASKS

    assert {task for tasks in protocol.tasks.values() for task in tasks} <= set(TASKS)
    assert set(protocol.if_there) <= set(TASKS)


def test_pairs_are_two_views_of_one_image(tmp_path, monkeypatch):
    space = Workspace(None, tmp_path, SIZE, progress=False)
    task = build("photographs", space, 0)
    features = views.views(task)
    assert features.shape == (views.COPIES, len(task.train), 3, 32, 32)
    assert 0.02 < (features[0] - features[1]).abs().mean() < 0.5
    grey = torch.full((64, 3, 8, 8), 0.5)
    deviations = (views.augmented(grey, 0, 0.25) - views.augmented(grey, 0)).std((1, 2, 3))
    assert 0.09 < deviations.mean() < 0.15  # U(0, .25), a little of it clipped
    assert deviations.max() < 0.27
    assert not torch.equal(views.views(task, 0.25), features)
    numbers = torch.arange(views.COPIES * 7.0).view(views.COPIES, 7, 1)
    for x, y in views.Pairs(numbers, 0):
        image = x[:, 0].long() % 7
        assert torch.equal(image[:7], image[7:])
        assert (x[:7] != x[7:]).all()
        assert torch.equal(y, torch.arange(7).repeat(2))
    chosen = {"inverse_temperature": 16.0, "learning_rate": 1e-3}
    monkeypatch.setattr(views, "settings_of", lambda _: dict(chosen))
    monkeypatch.setattr(views, "TYPES", ("gaussian_noise",))
    fitting = Fitting(space, task, 0, 1)
    row = views.measured(views.Line("mcinfonce", views.VIEWS, {"concentration": "norm"}), fitting)
    assert row["severity"] == row["gaussian_noise"]
    assert row["kappa"] > 0


def test_the_model_of_the_best_crops_is_the_one_that_is_asked(people, tmp_path, monkeypatch):
    task = dataclasses.replace(people.task, validation=people.task.test.spread(50))
    most = cifar10h.labelled(task, "majority").train
    assert most.soft is None
    assert most.labels.tolist() == shares(task.train).argmax(1).tolist()
    assert cifar10h.labelled(task, "soft") is task
    chosen = {"inverse_temperature": 16.0, "learning_rate": 1e-3}
    monkeypatch.setattr(cifar10h, "settings_of", lambda _: dict(chosen))
    watched, ask = [], cifar10h.asked

    def noted(method, fitting, part):
        found = ask(method, fitting, part)
        if part is not fitting.task:
            found["crop rank"] = {1: 0.1, 2: 0.3, 3: 0.2}[len(watched) + 1]
            watched.append(ask(method, fitting, fitting.task))
        return found

    monkeypatch.setattr(cifar10h, "asked", noted)
    rows = cifar10h.measured(Fitting(people.space, task, 0, 3))
    assert rows[cifar10h.CHOSEN]["round"] == 2
    for name in cifar10h.METRICS:
        assert rows[cifar10h.LAST][name] == pytest.approx(watched[2][name], abs=1e-6)
        assert rows[cifar10h.CHOSEN][name] == pytest.approx(watched[1][name], abs=1e-6)
    assert watched[1]["entropy rank"] != watched[2]["entropy rank"]


def test_settings_are_those_of_the_defaults_first_and_crops_search_their_image(unseen, monkeypatch):
    drawn = transfer.trials(METHODS["mcinfonce"])
    assert drawn[0] == METHODS["mcinfonce"].default
    assert drawn == transfer.trials(METHODS["mcinfonce"])
    assert len({str(one) for one in drawn}) == transfer.TRIALS
    monkeypatch.setattr(transfer, "TASK", "digits-unseen")
    row = transfer.measured("mcinfonce", drawn[0], unseen.space, 0)
    assert 0 <= row["own recall@1"] <= 1
    monkeypatch.setattr(open_set, "cropped", lambda images, _: images)
    assert transfer.by_own_image(unseen)["own recall@1"] > 0.95  # but for equal digits
    reference = transfer.measured(transfer.MANY, {"learning_rate": 1e-3}, unseen.space, 0)
    assert reference["recall@1"] > row["recall@1"]


def test_half_of_each_new_class_is_shown_and_the_other_half_asked(unseen):
    own, queries = transfer.halves(unseen.task)
    assert set(own.labels.tolist()) == set(queries.labels.tolist()) == {6, 7, 8, 9}
    pixels = [{row.numpy().tobytes() for row in part.inputs} for part in (own, queries)]
    assert not pixels[0] & pixels[1]
    assert abs(len(own) - len(unseen.task.whole) / 2) <= 2


def test_correlations_over_settings_are_seed_by_seed():
    rows = [
        {"trial": t, "seed": s, "x": t + 0.1 * s, "y": (1 - 2 * s) * t}
        for t in range(4)
        for s in (0, 1)
    ]
    assert transfer.by_seed(rows, "x", "y") == pytest.approx([1, -1])
