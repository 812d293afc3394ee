"""What the tasks hold back, how batches are drawn, and what a crop is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from scipy import stats

from benchmarks.corruptions import cropped, kept_shares
from benchmarks.engine.fitting import BATCH, BATCHES, Schedule
from benchmarks.protocols import PROTOCOLS
from benchmarks.protocols.runner import Runner
from benchmarks.sizes import SMOKE
from benchmarks.tasks import Part, Workspace, build
from benchmarks.tasks.frozen import entropy
from benchmarks.tasks.task import joined
from laplace_metric.datasets import ImageSet

SMALL = dataclasses.replace(SMOKE, queries=300)


@pytest.fixture
def space(tmp_path):
    return Workspace(None, tmp_path, SMALL, progress=False)


def classes(part):
    return set(part.labels.tolist())


def rows(part):
    return {tuple(x.flatten().tolist()) for x in part.read()}


def test_a_closed_set_shares_classes_and_no_images(space):
    task = build("digits", space, 0)
    assert classes(task.train) == classes(task.validation) == classes(task.test)
    assert not rows(task.train) & rows(task.validation)


def test_an_open_set_shares_no_classes(space):
    task = build("digits-unseen", space, 0)
    parts = [classes(part) for part in (task.train, task.validation, task.test)]
    assert sum(len(part) for part in parts) == len(set.union(*parts)) == 10
    assert classes(task.seen) == parts[0]
    assert not rows(task.seen) & rows(task.train)


def test_the_folds_of_people_are_disjoint_and_cover_all(real_data, tmp_path, monkeypatch):
    images = Workspace(str(real_data), tmp_path, SMALL).load("cifar10", "test", 500)
    whole = Part(torch.arange(500)[:, None].float(), images.labels, images)
    monkeypatch.setattr("benchmarks.tasks.frozen.features_of", lambda *_: whole)
    tested = []
    for fold in range(5):
        space = Workspace(str(real_data), tmp_path, SMALL, progress=False)
        task = build("cifar10h-soft", space, fold)
        ids = [set(p.inputs.flatten().tolist()) for p in (task.train, task.validation, task.test)]
        assert [len(one) for one in ids] == [300, 100, 100]
        assert len(set.union(*ids)) == 500
        tested.append(ids[2])
        assert torch.allclose(task.train.soft.sum(1), torch.ones(300).double())
    assert len(set.union(*tested)) == 500
    counts = task.test.images.extras["cifar10h_counts"].numpy()
    assert torch.allclose(entropy(task.test), torch.tensor(stats.entropy(counts, axis=1)))


def test_batches_of_classes_hold_as_many_of_each():
    labels = torch.arange(60).repeat(7)
    part = Part(torch.arange(420).float(), labels)
    batches = list(Schedule(part, 0, per_class=4))
    assert len(batches) == BATCHES
    for x, y in batches:
        assert len(x.unique()) == len(x) <= BATCH
        assert (y.unique(return_counts=True)[1] == 4).all()
    again = list(Schedule(part, 0, per_class=4))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, again, strict=True))


def test_a_round_shows_every_class():
    part = Part(torch.arange(900 * 5).float(), torch.arange(900).repeat(5))
    rounds = Schedule(part, 0, per_class=4)
    batches = list(rounds)
    assert len(batches) == len(rounds) == 29
    assert len(torch.cat([y for _, y in batches]).unique()) == 900


def test_soft_labels_are_drawn_anew_with_their_probabilities():
    soft = torch.tensor([[0.8, 0.2], [0.3, 0.7]]).repeat(64, 1)
    part = Part(torch.tensor([0.0, 1.0]).repeat(64), torch.tensor([0, 1]).repeat(64), soft=soft)
    x, y = (torch.cat(c) for c in zip(*Schedule(part, 3), strict=True))
    for kind, share in ((0, 0.2), (1, 0.7)):
        assert float(y[x == kind].double().mean()) == pytest.approx(share, abs=0.03)


def test_parts_that_are_joined_keep_their_classes_apart():
    one = Part(torch.zeros(2), torch.tensor([0, 3]))
    assert joined(one, one).labels.tolist() == [0, 3, 4, 7]


def test_a_crop_shows_the_kept_share_from_within():
    ramp = torch.linspace(0, 1, 64).expand(1, 1, 64, 64).repeat(200, 1, 1, 1)
    kept = kept_shares(200)
    crops = cropped(ramp, kept)
    width = crops.amax((1, 2, 3)) - crops.amin((1, 2, 3))
    assert torch.allclose(width, kept, atol=0.03)
    assert kept.min() >= 0.25
    assert abs(float(kept.mean()) - 0.625) < 0.05
    whole = cropped(ramp[:3], torch.ones(3))
    assert torch.allclose(whole, ramp[:3], atol=1e-5)


N_CLASSES = {"cub": 100, "emoji": 9}


def fake_features(_space, name, split, limit=None, **_):
    """Six images a class, whose features are numbers of their own; two emoji share a base."""
    n = N_CLASSES.get(name, 10)
    labels = torch.arange(n).repeat(6)
    first = 10_000 * (split == "test") + 100_000 * sorted(("cub", "emoji", name)).index(name)
    numbers = torch.arange(len(labels)) + first
    extras = {"base": numbers // 2}
    pixels = torch.zeros(len(labels), 3, 1, 1)
    images = ImageSet(pixels, labels, name, tuple(map(str, range(n))), extras)
    return Part(numbers[:, None].expand(-1, 1280).float(), labels, images)


@pytest.fixture
def features(monkeypatch):
    """A folder with everything: names of image sets that are taken out of it are not there."""
    folder = {"cub", "emoji", "hierarcaps"}
    monkeypatch.setattr("benchmarks.tasks.frozen.features_of", fake_features)
    monkeypatch.setattr("benchmarks.tasks.pretrained.features_of", fake_features)
    monkeypatch.setattr("benchmarks.tasks.frozen.has", lambda _, name: name in folder)
    monkeypatch.setattr("benchmarks.protocols.runner.has", lambda _, name: name in folder)
    build.cache_clear()
    yield folder
    build.cache_clear()


def ids(part):
    return set(part.inputs[:, 0].int().tolist())


BIRDS = Workspace(None, Path("cache"), dataclasses.replace(SMOKE, queries=9_999), progress=False)


def test_birds_of_new_species_are_asked(features):
    task = build("cub", BIRDS, 0)
    assert classes(task.train) == classes(task.seen) == set(range(40))
    assert classes(task.validation) == set(range(40, 50))
    assert classes(task.test) == set(range(50, 100))
    assert len(task.test) == len(task.test.images) == 50 * 12
    assert torch.equal(task.test.images.labels, task.test.labels)
    assert not ids(task.seen) & ids(task.train)
    assert list(task.out) == ["cifar10", "photographs", "emoji"]
    features -= {"emoji", "hierarcaps"}
    build.cache_clear()
    assert list(build("cub", BIRDS, 0).out) == ["cifar10"]


def test_new_species_are_those_that_the_fit_never_saw(features):
    one, other = (build("pretrained-cub-unseen", BIRDS, seed) for seed in (0, 1))
    known, new = classes(one.test), classes(one.out["new species"])
    assert len(known) == len(new) == 50
    assert not known & new
    assert classes(one.train) | classes(one.validation) == known
    assert new != classes(other.out["new species"])
    assert len(one.out["new species"]) == 50 * 6


NEW = {"cub", "pretrained-cub-unseen"}


@pytest.mark.parametrize("there", [True, False])
def test_birds_are_asked_where_their_images_are(features, there):
    features -= set() if there else {"cub"}
    for size in ("small", "paper", "smoke"):
        runner = Runner(dataclasses.replace(BIRDS, size=dataclasses.replace(SMOKE, name=size)))
        tasks = {
            name: {job.task for job in runner.jobs([PROTOCOLS[name]])} & NEW
            for name in ("lam", "url", "pretrained")
        }
        asked = there and size != "smoke"
        birds = {"cub"} if asked else set()
        assert tasks == {
            "lam": birds, "url": birds, "pretrained": {f"pretrained-{b}-unseen" for b in birds},
        }  # fmt: skip
