"""Items and queries that come in bursts: frames of a video, photographs of one object."""

import re
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import FittedQueriesWarning
from laplace_metric.familiarity import _bursts
from laplace_metric.familiarity._bursts import LARGEST_BURST, MOST
from laplace_metric.familiarity._bursts import bursts as bursts_of
from laplace_metric.models import Precomputed
from laplace_metric.search._near_copies import COMPARED, NearCopies, _copies, near_copies
from laplace_metric.search.engines import _engine
from laplace_metric.search.engines._found_shares import spread_rows

CLASSES = 20


def bursts(size, per_class, width=16, noise=0.2, seed=0):
    """Vectors of 20 classes, each of bursts about points of its own."""
    g = np.random.default_rng(seed)
    codes = np.repeat(np.arange(CLASSES), per_class * size)
    middle = 0.7 * g.normal(size=(CLASSES, width))
    scene = g.normal(size=(CLASSES * per_class, width)).repeat(size, 0)
    x = middle[codes] + scene + noise * g.normal(size=(len(codes), width))
    return x.astype(np.float32), codes


def found(x, y):
    codes = np.unique(y, return_inverse=True)[1]
    return near_copies(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(codes))


@pytest.mark.parametrize("width", [8, 16, 64, 512])
@pytest.mark.parametrize("noise", [0.05, 0.2, 0.3])
@pytest.mark.parametrize(
    ("size", "per_class"), [(2, 10), (3, 6), (5, 4), (10, 5), (20, 3), (30, 2)]
)
def test_bursts_of_any_size_are_found(size, per_class, noise, width):
    copies = found(*bursts(size, per_class, width, noise))
    assert copies.share > MOST
    assert copies.size == size
    assert copies.apart < 0.7


def test_the_largest_burst_is_found():
    assert found(*bursts(60, 2)).size == LARGEST_BURST == 60


def test_pairs_in_classes_of_four_are_found_among_larger_classes():
    """Twenty classes of twenty that are even, and ten of two pairs."""
    g = np.random.default_rng(0)
    y = np.concatenate([np.repeat(np.arange(20), 20), np.repeat(np.arange(20, 30), 4)])
    x = g.normal(size=(len(y), 16))
    x[401::2] = x[400::2] + 0.01 * g.normal(size=(20, 16))
    copies = found(x, y)
    assert copies.share == pytest.approx(40 / 440)
    assert copies.size == 2


def test_four_vectors_are_enough_for_a_pair():
    x = np.array([[0.0, 0.0], [0.0, 1e-6], [1.0, 0.0], [1.4, 0.0]])
    assert found(x, np.zeros(4)).share == 0.5
    assert found(x[:3], np.zeros(3)).share == 0


def test_the_size_and_how_near_they_are_is_measured():
    copies = found(*bursts(5, 4, noise=0.1))
    assert copies.share > 0.99
    assert copies.apart == pytest.approx(0.14, abs=0.03)


def sets():
    for name, load in {
        "digits": load_digits,
        "iris": load_iris,
        "wine": load_wine,
        "breast cancer": load_breast_cancer,
    }.items():
        x, y = load(return_X_y=True)
        yield name, x, y
        yield f"{name}, scaled", (x - x.mean(0)) / (x.std(0) + 1e-9), y
        yield f"{name}, of length 1", x / np.linalg.norm(x, axis=1, keepdims=True), y


@pytest.mark.parametrize(("name", "x", "y"), [pytest.param(*of, id=of[0]) for of in sets()])
def test_collections_as_they_are_hold_none(name, x, y):
    assert found(x, y).share <= MOST


@pytest.mark.parametrize(("classes", "size", "width"), [(5, 12, 8), (100, 3, 16), (10, 40, 3)])
def test_independent_items_of_heavy_tails_hold_none(classes, size, width):
    for seed in range(5):
        g = np.random.default_rng(seed)
        y = np.repeat(np.arange(classes), size)
        x = 2 * g.normal(size=(classes, width))[y] + g.standard_t(4, size=(len(y), width))
        assert found(x, y).share <= MOST


def test_small_classes_that_lie_close_together_are_no_bursts():
    for size in (2, 3, 5, 9, 12):
        g = np.random.default_rng(size)
        y = np.repeat(np.arange(60), size)
        x = g.normal(size=(60, 16))[y] + 0.1 * g.normal(size=(len(y), 16))
        assert found(x, y).share <= MOST


def test_one_far_item_of_each_class_makes_no_burst_of_the_others():
    g = np.random.default_rng(0)
    y = np.repeat(np.arange(20), 12)
    x = g.normal(size=(240, 8))
    x[::12] += 50
    assert found(x, y).share <= MOST


def test_few_near_copies_are_not_told_and_more_are():
    x, y = load_digits(return_X_y=True)
    for share, told in ((0.01, False), (0.03, True)):
        n = int(share * len(x))
        again = x[:n] + 0.3 * np.random.default_rng(0).normal(size=(n, 64))
        copies = found(np.concatenate([x, again]), np.concatenate([y, y[:n]]))
        assert (copies.share > MOST) == told
        assert copies.are_many == told


def test_one_pair_among_few_vectors_is_chance():
    assert not NearCopies(2 / 30, 2, 0.3, 30).are_many
    assert NearCopies(4 / 30, 2, 0.3, 30).are_many
    assert not NearCopies(0.0).are_many


def test_copies_that_are_equal_and_too_few_items_are_not_near_copies():
    assert found(np.ones((40, 3)), np.arange(40) % 4).share == 0
    assert found(np.eye(3), np.arange(3)).share == 0
    x = torch.randn(60, 4)
    assert near_copies(x, None).share <= MOST
    assert near_copies(x, torch.full((60,), -1)).share <= MOST


@pytest.mark.parametrize(
    "ask",
    [
        lambda x, y: Guard(x, y, precision=0.5),
        lambda x, y: Guard(x, [f"class {code}" for code in y], precision=0.5),
        lambda x, y: Guard(
            x, y, precision=0.5, model=torch.nn.Linear(16, 16), trained_on_items=False
        ),
        lambda x, y: LaplaceEmbedder(Precomputed(16), head="append").cross_index(x, y),
    ],
)
def test_each_way_to_calibrate_by_the_items_tells_bursts(ask):
    x, y = bursts(5, 4)
    with pytest.warns(FittedQueriesWarning) as told:
        ask(x, y)
    message = str(told[0].message)
    assert re.match("(100|9[0-9])% of the items are near-copies of others, about 5 that", message)
    assert "keep one of each, or calibrate with queries that have none" in message
    assert "held_out=" in message
    assert told[0].filename == __file__
    assert len([each for each in told if "near-copies" in str(each.message)]) == 1


def test_bursts_among_the_queries_that_calibrate_are_told_too():
    x, y = bursts(5, 4, seed=1)
    one = slice(None, None, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FittedQueriesWarning)
        Guard(*bursts(5, 4), held_out=(x[one], y[one]), precision=0.5)
    with pytest.warns(FittedQueriesWarning, match="100%.*near-copies.*about 5 "):
        guard = Guard(*bursts(5, 4), held_out=(x, y), precision=0.5)
    x, y = bursts(5, 4, seed=2)
    with pytest.warns(FittedQueriesWarning, match="100%.*near-copies"):
        guard.index.evaluate(x, y)


def of_items(x, y, asked):
    """Near-copies of the other rows among these."""
    codes = torch.as_tensor(np.unique(y, return_inverse=True)[1])
    x = torch.as_tensor(x, dtype=torch.float32)
    return near_copies(x[asked], codes[asked], x[~asked], codes[~asked])


@pytest.mark.parametrize(("size", "per_class"), [(2, 10), (3, 6), (5, 4), (10, 5), (30, 2)])
def test_queries_that_are_near_copies_of_items_are_found(size, per_class):
    x, y = bursts(size, per_class)
    asked = torch.arange(len(y)) % size == 0
    assert not near_copies(torch.as_tensor(x)[asked], torch.as_tensor(y)[asked]).are_many
    copies = of_items(x, y, asked)
    assert copies.are_many
    assert copies.size == size


@pytest.mark.parametrize(("name", "x", "y"), [pytest.param(*of, id=of[0]) for of in sets()])
def test_collections_split_at_random_hold_no_copies_of_items(name, x, y):
    for seed in range(3):
        asked = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < 0.3
        assert not of_items(x, y, asked).are_many


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_held_out_queries_that_lie_among_the_items_are_told(noise):
    g = np.random.default_rng(0)
    y = np.arange(600) % 20
    x = (1.5 * g.normal(size=(20, 16))[y] + g.normal(size=(600, 16))).astype(np.float32)
    again = x[::3] + noise * g.normal(size=(200, 16)).astype(np.float32)
    with pytest.warns(FittedQueriesWarning, match="%.*queries.*near-copies of items.*one"):
        Guard(x, y, held_out=(again, y[::3]), precision=0.5)


@pytest.mark.parametrize("kind", ["even", "near", "exact", "ties"])
@pytest.mark.parametrize(
    ("n", "m", "classes"), [(8, 14, 3), (60, 200, 4), (300, 900, 1), (700, 300, 9)]
)
def test_items_beside_the_queries_are_as_those_behind_them(n, m, classes, kind, monkeypatch):
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        codes = torch.randint(classes, (n + m,), generator=g)
        x = torch.randn(classes, 8, generator=g)[codes] + torch.randn(n + m, 8, generator=g)
        again = slice(n, n + min(n, m) // 3)
        if kind == "ties":
            x = x.round()
        elif kind != "even":
            x[again] = x[: min(n, m) // 3]
            codes[again] = codes[: min(n, m) // 3]
        if kind == "near":
            x[again] += 0.05 * torch.randn(x[again].shape, generator=g)
        rows = spread_rows(n, COMPARED)
        one, apart = _copies(x[:n], rows, x[n:])
        joined = _copies(x, rows, None)
        assert torch.equal(apart, joined[1])
        assert torch.equal(one & (apart > 0), joined[0])
        assert kind != "exact" or one.double().mean() > 0.1
        burst = bursts_of(x, codes, rows)
        assert all(map(torch.equal, bursts_of(x[:n], codes, rows, x[n:]), burst))
        if kind in ("even", "near"):  # of copies the distance is one of rounding, in any block
            with monkeypatch.context() as small:
                small.setattr(_bursts, "LARGE_BYTES", 2**16)
                torch.testing.assert_close(bursts_of(x[:n], codes, rows, x[n:]), burst)


def test_items_are_not_copied(monkeypatch):
    x, y = (torch.as_tensor(each) for each in bursts(5, 40))
    asked = torch.arange(len(x)) % 5 == 0
    items, taken = x[~asked], []

    def tracked(make):
        def call(*args, **how):
            made = make(*args, **how)
            taken.append(len(made) if made.dim() > 1 else 0)
            return made

        return call

    expected = near_copies(x[asked], y[asked], items, y[~asked])
    monkeypatch.setattr(torch, "cat", tracked(torch.cat))
    monkeypatch.setattr(_engine, "faiss_candidates", tracked(lambda vectors: vectors.clone()))
    monkeypatch.setattr(_engine, "faiss_fits", lambda vectors: len(vectors) == len(items))
    assert near_copies(x[asked], y[asked], items, y[~asked]) == expected
    assert 0 < max(taken) < len(items) / 2
