"""Searches among some of the items: those of an index of these items alone."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import InputError, StaleCalibrationWarning, UnfamiliarQueriesWarning
from laplace_metric.search import Flat
from laplace_metric.search._among import search_among
from laplace_metric.search.engines._engine import FlatEngine

pytestmark = pytest.mark.usefixtures("quick")
X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER].astype(np.float32), Y[ORDER]
N = 300
NEW = slice(1100, 1140)


@cache
def made(rank_by):
    embedder = LaplaceEmbedder.from_embeddings(X[:N], Y[:N])
    index = embedder.index(X[:N], Y[:N], ids=np.arange(N) + 1_000, rank_by=rank_by)
    index.calibrate(X[N : N + 300], Y[N : N + 300])
    return index


@cache
def guard():
    return Guard(X[:N], Y[:N], precision=0.9)


def alone(index, rows):
    """An index of these items alone, with the calibration and class model of the whole one."""
    rows, part = torch.as_tensor(rows), copy.copy(index)
    items = index.items.take(rows)
    engine = FlatEngine(index.ranking.item_vectors(items.encoded), Flat())
    part._state = replace(index._state, items=items, engine=engine)
    return part


@settings(max_examples=25, deadline=None)
@given(
    rank_by=st.sampled_from(["mean", "predictive", "shared"]),
    n=st.integers(1, 120),
    k=st.integers(1, 30),
    seed=st.integers(0, 99),
    as_ids=st.booleans(),
)
def test_it_finds_what_an_index_of_the_allowed_items_finds(rank_by, n, k, seed, as_ids):
    index = made(rank_by)
    rows = np.random.default_rng(seed).permutation(N)[:n]
    mask = np.isin(np.arange(N), rows)
    found = index.search(X[NEW], k, among=index.ids[rows] if as_ids else mask)
    least = min(k, n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfamiliarQueriesWarning)
        expected = alone(index, np.flatnonzero(mask)).search(X[NEW], least)
    assert found.ids.shape == (40, k)
    assert found.ids[:, :least].tolist() == expected.ids.tolist()
    assert found.labels[:, :least].tolist() == expected.labels.tolist()
    assert (found.ids[:, least:] == -1).all()
    assert found.positions[:, :least].tolist() == (expected.ids - 1_000).tolist()
    np.testing.assert_allclose(found.distance[:, :least], expected.distance, rtol=1e-6)
    np.testing.assert_allclose(
        found.distance_sd[:, :least], expected.distance_sd, rtol=1e-4, atol=1e-6
    )
    for name in ("ambiguity", "match_probability", "p_value", "label_probability"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        ours = ours[:, :least] if ours.ndim == 2 else ours
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6, err_msg=name)
    assert found.label.tolist() == expected.label.tolist()
    assert (found.among.allowed, found.among.items) == (n, N)


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_parts_of_the_allowed_rows_are_joined(size, monkeypatch):
    monkeypatch.setattr("laplace_metric.search._among.block_rows", lambda *_: size)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=g).round()  # with ties, which keep the order of position
    rows = torch.randperm(200, generator=g)[:50].sort().values
    gaps = torch.cdist(x.double(), x[rows].double())
    expected = rows[gaps.argsort(dim=1, stable=True)]
    assert search_among(x, rows)(x, 50).tolist() == expected.tolist()
    assert search_among(x, rows)(x, 60)[:, 50:].eq(-1).all()


def test_a_guard_answers_with_labels_of_the_allowed_items_and_says_what_was_not_tested():
    few = np.isin(Y[:N], [1, 2, 3])
    made = copy.deepcopy(guard())
    with pytest.warns(StaleCalibrationWarning, match=r"known.*among some.*items"):
        answers = made.ask(X[NEW], among=few)
    with warnings.catch_warnings():  # once a calibration
        warnings.simplefilter("error")
        made.ask(X[NEW], among=np.arange(100))
        made.at(0.8).ask(X[NEW], among=few)
    made.calibrate(X[N : N + 300], Y[N : N + 300])
    with pytest.warns(StaleCalibrationWarning, match="not known.*hold"):
        made.rule(made.index.search(X[NEW], among=few))
    assert set(answers.label.tolist()) <= {1, 2, 3, None}
    assert answers.answered.sum() > 3
    told = f"searched among {few.sum()} of 300 items; guarantees were tested with the whole gallery"
    for shown in (answers, answers[:5], guard().index.search(X[NEW], among=few)):
        assert told in repr(shown)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        everything = guard().ask(X[NEW])
        thresholded = guard().index.ask(X[NEW], probability=0.9, among=few)
    assert everything.among is None
    assert thresholded.among.allowed == few.sum()


def test_filtered_queries_do_not_count_as_unfamiliar():
    one = Y[:N] == 1
    fresh = copy.deepcopy(guard())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert fresh.index.search(X[1100:1400], among=one).unknown.float().mean() > 0.2
        fresh.ask(X[NEW])


@pytest.mark.parametrize(
    ("among", "message"),
    [
        (np.ones(N - 1, bool), r"among is a mask of shape \[299\] for 300 items"),
        (np.ones((N, 1), bool), r"among is a mask of shape \[300, 1\] for 300 items"),
        ([True, False], r"among is a mask of shape \[2\]"),
        (np.zeros(N, bool), "among leaves none of the 300 items"),
        ([], "among leaves none"),
        (np.zeros(0), "among leaves none"),
        (np.ones(N), "among is float64: pass booleans, one for each item in the order of"),
        (torch.ones(N), "among is torch.float32: pass booleans"),
        ([0.5], "among are float64"),
        (np.ones(N, int), r"among holds ids more than once, \[1\] among them.*astype\(bool\)"),
        ([3, 300, 301], r"among \[300, 301\] are not in the index"),
        (["3"], "whose ids are numbers: pass numbers, not strings"),
        ("3", "among is a str"),
        ({3}, "among is a set"),
    ],
)
def test_filters_that_cannot_be_read_are_named(among, message):
    for ask in (guard().ask, guard().index.search, guard().index.ask):
        with pytest.raises(InputError, match=message):
            ask(X[NEW], among=among)


@pytest.mark.parametrize("kind", ["list", "tensor", "series", "nullable", "tuple of ids"])
def test_filters_of_any_kind_of_array(kind):
    mask = np.arange(N) % 7 == 0
    pandas = pytest.importorskip("pandas")
    given = {
        "list": mask.tolist(),
        "tensor": torch.tensor(mask),
        "series": pandas.Series(mask),
        "nullable": pandas.Series(mask, dtype="boolean"),
        "tuple of ids": tuple(np.flatnonzero(mask)[::-1].tolist()),
    }[kind]
    expected = guard().index.search(X[NEW], among=mask)
    assert guard().index.search(X[NEW], among=given).ids.tolist() == expected.ids.tolist()


@pytest.mark.parametrize("engine", ["ivf", "hnsw", "function"])
def test_the_search_is_exact_whatever_the_engine_is(engine):
    pytest.importorskip("faiss")
    embedder = LaplaceEmbedder.from_embeddings(X[:N], Y[:N])
    exact = embedder.index(X[:N], Y[:N], rank_by="mean")
    if engine == "function":
        other = exact.searched_by(lambda q, k: exact.engine.search(torch.tensor(q), k).numpy())
    else:
        other = embedder.index(X[:N], Y[:N], rank_by="mean", engine=engine)
    mask = np.arange(N) % 10 == 0
    expected = exact.search(X[NEW], 20, among=mask)
    assert other.search(X[NEW], 20, among=mask).ids.tolist() == expected.ids.tolist()
