"""What is given to an engine, what is measured of it, and the command that tries them all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.examples.engines import (
    LanceTable,
    PgVector,
    Qdrant,
    QdrantEdge,
    StoredItems,
    __main__,
    distances,
)
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.search._expected_vectors import gallery_vectors, moments, query_vectors
from tests.benchmarks.engines.conftest import ENGINES, collection


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"ids": np.zeros(300, np.int64)}, InputError, "ids are no different int64"),
        ({"ids": np.arange(300.0)}, InputError, "ids are no different int64"),
        ({"ids": np.arange(3)}, InputError, r"ids has shape \(3,\): pass one an item, 300"),
        ({"labels": np.zeros(300)}, InputError, "labels are float64"),
        ({"labels": np.zeros(3, int)}, InputError, "labels has shape"),
        ({"epistemic": np.full(300, np.nan)}, NonFiniteError, "epistemic holds"),
        ({"spread": np.full(300, np.inf)}, NonFiniteError, "spread holds"),
        ({"vectors": np.full((300, 6), np.nan, "f4")}, NonFiniteError, "vectors holds"),
    ],
)
def test_items(changed, error, message):
    with pytest.raises(error, match=message):
        replace(collection().stored(), **changed)


def test_items_as_they_are_stored():
    of = collection()
    items = of.stored()
    np.testing.assert_array_equal(items.vectors, of.items.mean)
    np.testing.assert_array_equal(items.epistemic, of.items.epistemic)
    t = of.items.uncertainty.double()
    np.testing.assert_allclose(items.spread, (t * (1 - t / 4)).sqrt(), rtol=1e-6)
    parts = list(items.batches(128))
    assert [len(part) for part in parts] == [128, 128, 44]
    np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), items.ids)
    named = StoredItems.of(of.items, of.labels.astype(str).astype(object), spherical=True)
    assert named.labels.dtype.kind == "U"
    assert named.ids.tolist() == list(range(300))


@pytest.mark.parametrize("rank_by", ["mean", "expected"])
def test_the_items_of_an_index(rank_by):
    of = collection(rank_by, names=True)
    for name, value in vars(StoredItems.of_index(of.index)).items():
        wanted = getattr(of.stored(), name)
        assert value.dtype == wanted.dtype
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(value, wanted)


NAMES = {PgVector: "pgvector", LanceTable: "lancedb", Qdrant: "qdrant", QdrantEdge: "qdrant-edge"}


@pytest.mark.parametrize("opened", ENGINES[:4], indirect=True)
def test_digits(opened, capsys):
    engine = opened()
    engine.close()
    __main__.main([NAMES[type(engine)]])
    said = capsys.readouterr().out
    assert "100.0% of the 20 neighbours" in said
    assert "100.0% of the decisions" in said
    assert float(said.split("differ by ")[1].split()[0]) < 2e-6


@pytest.mark.parametrize("dialect", ENGINES[4:])
def test_requests(dialect, capsys):
    __main__.main([dialect])
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ["PUT /items", "POST /items/_bulk", "POST /items/_search"]


def directions(seed: int, *shape: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 7), st.integers(2, 9))
def test_every_kind_is_the_euclidean_distance(seed, q, n, z):
    x, y = directions(seed, q, 1, z), directions(seed + 1, n, z)
    d, c = np.linalg.norm(x - y, axis=2), (x * y).sum(2)
    told = {
        "squared": distances.from_squared(d**2),
        "cosine": distances.from_cosine(c),
        "cosine distance": distances.from_cosine_distance(1 - c),
        "l2 score": distances.from_l2_score(1 / (1 + d**2)),
        "cosine score": distances.from_cosine_score((1 + c) / 2),
    }
    for name, value in told.items():
        np.testing.assert_allclose(value, d, atol=1e-7, err_msg=name)


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_the_coordinate_more_is_undone(seed, q, n, spherical):
    g = torch.Generator().manual_seed(seed)
    mean_x, mean_y = (torch.randn(m, 5, generator=g, dtype=torch.float64) for m in (q, n))
    most = 2 if spherical else 3
    t_x, t_y = (most * torch.rand(m, generator=g, dtype=torch.float64) for m in (q, n))
    if spherical:
        mean_x, mean_y = (torch.nn.functional.normalize(m, dim=1) for m in (mean_x, mean_y))
    stored = gallery_vectors(mean_y, t_y, spherical=spherical)
    asked = query_vectors(mean_x, t_x, spherical=spherical)
    s_x, s_y = (moments(m, t, spherical=spherical)[1] for m, t in ((mean_x, t_x), (mean_y, t_y)))
    told = (asked[:, None] - stored).norm(dim=2).numpy()
    spread, how = s_y.expand(q, n).numpy(), {"spherical": spherical}
    means = (mean_x[:, None] - mean_y).norm(dim=2).numpy()
    np.testing.assert_allclose(
        distances.of_means(told, spread, s_x.numpy(), **how), means, atol=1e-6
    )
