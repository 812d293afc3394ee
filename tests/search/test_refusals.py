"""What an index refuses, and that a refusal changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import (
    EmptyLoaderError,
    InputError,
    NonFiniteError,
    UnknownNameError,
)
from laplace_metric.search import IVF


def index_of(embedder, gallery, *args, **how):
    return embedder.index(gallery, *args, **how, progress=False)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        (
            {"ids": [1, 2, 2, *range(3, 20)]},
            InputError,
            r"ids stand more than once, \[2\].*of its own",
        ),
        ({"ids": [1, 2]}, InputError, "ids has 2 entries for 20 items"),
        ({"labels": [1, 2]}, InputError, "labels has 2 entries for 20 items"),
        ({"labels": [0.5] * 20}, InputError, "labels are float64"),
        ({"engine": "annoy"}, UnknownNameError, "engine='annoy'"),
        ({"engine": IVF(lists=21)}, InputError, "lists=21 for 20 items"),
        ({"rank_by": "luck"}, UnknownNameError, "rank_by='luck'.*'shared'"),
    ],
)
def test_an_index_refuses(how, error, message, points, embedder):
    with pytest.raises(error, match=message):
        index_of(embedder, points[0][:20], **how)


@pytest.mark.parametrize(
    ("gallery", "message"),
    [
        ("a text", r"gallery: 'a text' is a text, and vectors \[N, 6\] are needed"),
        (3, "gallery is .*list of texts"),
        (None, "gallery is .*list of texts"),
    ],
)
def test_what_is_no_gallery_is_refused(gallery, message, embedder):
    with pytest.raises(InputError, match=message):
        index_of(embedder, gallery)


def test_rows_without_a_number_or_a_direction_are_refused(points):
    x, y = points
    model = nn.Linear(6, 3, bias=False)
    embedder = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    bad = x[:9].clone()
    bad[2:4] = torch.nan
    with pytest.raises(NonFiniteError, match="2 of 9.*embeddings"):
        index_of(embedder, bad)
    bad[2:4] = 0
    with pytest.raises(InputError, match="2 of 9.*embeddings.*all zeros.*no direction"):
        index_of(embedder, bad)
    index = index_of(embedder, x[:9])
    with pytest.raises(InputError, match="all zeros"):
        index.search(bad, k=1)
    flat = LaplaceEmbedder(model, distance="euclidean", hessian="positives")
    flat.fit([(x, y)], progress=False)
    assert float(index_of(flat, bad).search(bad[2:3], k=1).distance) == 0


@pytest.mark.parametrize(
    ("k", "alpha", "message"),
    [
        (21, 0.05, "k=21: the index has 20 items.*k=20 or less"),
        (0, 0.05, "k=0"),
        (2.0, 0.05, "k=2.0"),
        (3, 0.0, "alpha=0.0"),
        (3, 1, "alpha=1"),
        (3, "a", "alpha='a'"),
    ],
)
def test_a_search_refuses(k, alpha, message, points, embedder):
    index = index_of(embedder, points[0][:20])
    with pytest.raises(InputError, match=message):
        index.search(points[0][:2], k=k, alpha=alpha)
    with pytest.raises(EmptyLoaderError, match="queries holds nothing"):
        index.search(iter([]))


REFUSED = {
    "ids that are there": (
        lambda i, x: i.add(x[:1], [1], ids=[3]),
        r"in the index already: \[3\]",
    ),
    "ids of another kind": (
        lambda i, x: i.add(x[:1], [1], ids=["a"]),
        "ids are numbers in the ind",
    ),
    "labels of another kind": (lambda i, x: i.add(x[:1], ["a"]), "labels are numbers in the index"),
    "no labels": (lambda i, x: i.add(x[:1]), "no labels were given"),
    "ids of nobody": (lambda i, x: i.remove([3, 77, 78]), r"ids \[77, 78\] are not in the index"),
    "strings": (lambda i, x: i.remove(["3"]), r"ids \['3'\] are not in the index"),
    "everybody": (lambda i, x: i.remove(range(20)), "cannot be empty"),
    "rows with NaN": (lambda i, x: i.add(x[:1] * torch.nan, [1]), "NaN"),
}


@pytest.mark.parametrize("engine", ["flat", "ivf", "hnsw"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_changes_nothing(case, engine, points, embedder):
    x, y = points
    index = index_of(embedder, x[:20], y[:20], engine=engine)
    before = index.search(x[20:30], k=20)
    change, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        change(index, x)
    after = index.search(x[20:30], k=20)
    assert np.array_equal(before.ids, after.ids)
    assert torch.equal(before.distance, after.distance)
    index.remove([])
    assert len(index) == 20


def test_an_engine_that_fails_leaves_the_items_as_they_were(points, embedder, monkeypatch):
    x, y = points
    index = index_of(embedder, x[:20], y[:20])

    def fails(self, vectors, kept):
        raise MemoryError

    monkeypatch.setattr(type(index.engine), "updated", fails)
    for change in (lambda: index.add(x[:3], y[:3]), lambda: index.remove([1])):
        with pytest.raises(MemoryError):
            change()
        assert len(index) == 20
    assert index.search(x[:1], k=20).ids.shape == (1, 20)


def test_ids_that_end_in_nul_are_not_removed_for_others(points, embedder):
    x = points[0]
    index = index_of(embedder, x[:3], ids=["a\0", "b", "c"])
    with pytest.raises(InputError, match=r"ids \['a'\].*not in"):
        index.remove(["a"])
    index.add(x[3:4], ids=["a"])
    index.remove(["a\0"])
    assert index.ids.tolist() == ["b", "c", "a"]
    with pytest.raises(InputError, match="ids hold 1.*int64"):
        index_of(embedder, x[:1], ids=np.array([2**63 + 5], np.uint64))
    last = index_of(embedder, x[:1], ids=[2**63 - 1])
    with pytest.raises(InputError, match="ids hold 1.*int64"):
        last.add(x[1:2])
