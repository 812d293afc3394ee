"""Inverted files and graphs of FAISS: recall, and who is who after items come and go."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplace_metric.errors import InputError, MissingPackageError, UnknownNameError
from laplace_metric.search import HNSW, IVF, Flat
from laplace_metric.search.engines._built_engine import build
from laplace_metric.search.engines._engine import kind_from_json, kind_of, kind_to_json
from laplace_metric.search.engines._faiss import FaissEngine

KINDS = {"ivf": IVF(), "hnsw": HNSW()}
ALL = {"ivf": IVF(lists=8, probes=8), "hnsw": HNSW(ef=600), "flat": Flat()}
"""Settings with which every kind is exact on these points."""


@pytest.mark.parametrize("kind", KINDS.values())
def test_nine_of_ten_neighbours_are_found(kind):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(50, 16, generator=g)[torch.arange(4000) % 50]
    x = x + 0.3 * torch.randn(4000, 16, generator=g)
    queries = x[:200] + 0.05 * torch.randn(200, 16, generator=g)
    exact = build(x, Flat()).search(queries, 10)
    hits = build(x, kind).search(queries, 10)
    assert float((hits[:, :, None] == exact[:, None]).any(1).double().mean()) >= 0.9


def test_where_too_few_are_found_there_is_nobody(points, embedder):
    x, y = points
    index = embedder.index(
        x[:200], [f"c{i}" for i in y[:200].tolist()], engine=IVF(lists=20, probes=1), progress=False
    )
    result = index.search(x[200:230], k=60)
    none = result.positions < 0
    assert bool(none.any())
    assert not bool(none[:, 0].any())
    assert bool((none[:, 1:] | ~none[:, :-1]).all()), "those that are missing come last"
    assert bool((result.distance[none] == torch.inf).all())
    assert bool((result.distance_sd[none] == torch.inf).all())
    assert bool(result.distance[~none].isfinite().all())
    assert (result.ids[none.numpy()] == -1).all()
    assert (result.labels[none.numpy()] == "").all()
    assert bool((result.distance_sd[~none] < 10).all())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("rank_by", ["mean", "expected", "shared"])
def test_adding_and_removing_gives_the_index_of_what_is_left(name, rank_by, points, embedder):
    x, y = points
    how = {"engine": ALL[name], "rank_by": rank_by, "progress": False}
    index = embedder.index(x[:300], y[:300], ids=np.arange(300) + 1000, **how)
    index.remove([1299, 1000, 1007, 1150])
    index.add(x[300:400], y[300:400], ids=np.arange(5000, 5100))
    index.remove(np.arange(1100, 1140))
    index.add(x[400:401], y[400:401])
    assert index.ids[-1] == 5100, "numbered behind the largest"
    gone = [0, 7, *range(100, 140), 150, 299]
    rows = np.delete(np.arange(401), gone)
    ids = np.concatenate([np.arange(300) + 1000, np.arange(5000, 5101)])[rows]
    fresh = embedder.index(x[rows], y[rows], ids=ids, **how)
    assert len(index) == len(fresh) == 401 - len(gone)
    assert np.array_equal(index.ids, ids)
    assert np.array_equal(index.labels, y.numpy()[rows])
    ours, theirs = (i.search(x[:60], k=20) for i in (index, fresh))
    assert np.array_equal(ours.ids, theirs.ids)
    assert np.array_equal(ours.labels, theirs.labels)
    assert torch.equal(ours.distance, theirs.distance)
    assert torch.equal(ours.distance_sd, theirs.distance_sd)
    assert not set(gone[:2]) & set((ours.ids - 1000).flatten().tolist())


@pytest.mark.parametrize("name", ALL)
def test_an_item_that_comes_again_under_its_id_is_the_new_one(name, points, embedder):
    x, y = points
    index = embedder.index(x[:100], y[:100], engine=ALL[name], progress=False)
    index.remove([99])
    index.add(x[500:501], y[500:501], ids=[99])
    nearest = index.search(x[500:501], k=1)
    assert nearest.ids.tolist() == [[99]]
    assert float(nearest.distance) < 1e-3
    assert 99 not in index.search(x[99:100], k=1).ids


def test_an_inverted_file_keeps_its_lists_and_its_keys(points):
    x, _ = points
    engine = build(x[:100], IVF(lists=4, probes=4))
    remaining = torch.cat([torch.arange(10), torch.arange(50, 100)])
    fewer = engine.updated(x[remaining], remaining)
    assert isinstance(fewer, FaissEngine)
    assert fewer.keys.tolist() == remaining.tolist()
    more = fewer.updated(torch.cat([x[remaining], x[100:102]]), None)
    assert isinstance(more, FaissEngine)
    assert more.keys[-3:].tolist() == [99, 100, 101]
    totals = [e.index.ntotal for e in (engine, fewer, more)]
    assert totals == [100, 60, 62]  # a search that holds the old one is not disturbed


def test_lists_and_probes_follow_the_number_of_items(points):
    x, _ = points
    assert build(x, IVF()).index.nlist == 600 // 39
    assert build(x, IVF()).index.nprobe == 8
    assert build(x, IVF(lists=100)).index.nprobe == 12
    assert build(x[:20], IVF()).index.nlist == 1
    assert build(x[:20], IVF(probes=9)).index.nprobe == 1
    large = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0))
    assert build(large.repeat(4, 1), IVF()).index.nlist == min(12_000 // 39, round(4 * 12_000**0.5))
    assert build(x[:50], HNSW(links=16, ef=33)).index.hnsw.efSearch == 33


@pytest.mark.parametrize(
    ("build_it", "message"),
    [
        (lambda: IVF(lists=0), "IVF: lists=0"),
        (lambda: IVF(probes=-1), "IVF: probes=-1"),
        (lambda: IVF(lists=1.5), "IVF: lists=1.5"),
        (lambda: HNSW(ef=0), "HNSW: ef=0"),
        (lambda: HNSW(links=1), "HNSW: links=1.*at least 2"),
        (lambda: build(torch.zeros(3, 2), IVF(lists=4)), "IVF: lists=4 for 3 items"),
        (lambda: kind_of("annoy"), "engine='annoy'.*'flat', 'ivf', 'hnsw'"),
        (lambda: kind_of(["flat"]), "engine="),
    ],
)
def test_settings_that_faiss_would_die_of_are_refused(build_it, message):
    with pytest.raises(InputError, match=message):
        build_it()
    assert issubclass(UnknownNameError, InputError)


def test_kinds_survive_json():
    for kind in (Flat(faiss=False), IVF(lists=3), HNSW(links=8, ef=9)):
        assert kind_from_json(kind_to_json(kind)) == kind


def test_without_faiss_the_message_says_what_works(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"Flat\(\).*pip install faiss-cpu"):
        build(torch.zeros(3, 2), HNSW())
