"""Items and neighbours are checked before an engine sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.examples.engines import Neighbours, StoredItems, vectors_of
from laplace_metric.errors import InputError, NonFiniteError, UnknownNameError
from tests.benchmarks.engines.conftest import collection


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
    np.testing.assert_allclose(items.spread, (t / (1 + t)).sqrt(), rtol=1e-6)
    parts = list(items.batches(128))
    assert [len(part) for part in parts] == [128, 128, 44]
    np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), items.ids)
    named = StoredItems.of(of.items, of.labels.astype(str).astype(object), spherical=True)
    assert named.labels.dtype.kind == "U"
    assert named.ids.tolist() == list(range(300))


def test_rankings_that_no_engine_has():
    of = collection()
    with pytest.raises(UnknownNameError, match="rank_by='shared'"):
        StoredItems.of(of.items, of.labels, spherical=True, rank_by="shared")
    with pytest.raises(UnknownNameError, match="rank_by='shared'"):
        vectors_of(of.queries, spherical=True, rank_by="shared")


def test_no_queries_and_no_neighbours():
    assert Neighbours.of([], 3).distances.shape == (0, 3)
    nothing = Neighbours.of([[]], 3)
    assert np.isinf(nothing.distances).all()
    assert (nothing.ids == -1).all()


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


def test_an_index_that_no_engine_can_have():
    of = collection()
    embedder, x = of.embedder, of.asked
    with pytest.raises(InputError, match="has no labels"):
        StoredItems.of_index(embedder.index(x, progress=False))
    texts = [f"item {i}" for i in range(len(x))]
    index = embedder.index(x, np.arange(len(x)) % 2, texts, progress=False)
    with pytest.raises(InputError, match="ids are no different int64"):
        StoredItems.of_index(index)
