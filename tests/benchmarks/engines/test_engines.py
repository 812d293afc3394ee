"""Every engine gives the answers of ``Index.search``, and has them after a restart."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.examples.engines import StoredItems, judged
from laplace_metric import Guard
from laplace_metric.errors import InputError, NonFiniteError
from tests.benchmarks.engines.conftest import ENGINES, K, collection

every_engine = pytest.mark.parametrize("opened", ENGINES, indirect=True)


def same_answers(of, found, close: float) -> None:
    """Numbers to ``close``; neighbours, labels, "unknown" and decisions the same."""
    wanted = of.index.search(of.asked, k=K)
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    verdict = judged(of.index.calibration, found, of.queries, **of.how)
    for name in ("match_probability", "p_value", "label_probability", "ambiguity"):
        told = np.asarray(getattr(verdict, name))
        expected = np.asarray(getattr(wanted, name))
        np.testing.assert_allclose(told, expected, rtol=0, atol=close, err_msg=name)
    np.testing.assert_array_equal(verdict.label, wanted.label)
    np.testing.assert_array_equal(verdict.unknown, np.asarray(wanted.unknown))
    threshold = of.index.guarantee(precision=0.8, of="match")
    accepted = threshold(verdict).answered
    np.testing.assert_array_equal(accepted, np.asarray(threshold(wanted).answered))
    assert 0 < accepted.sum() < len(accepted)


@every_engine
@pytest.mark.parametrize("names", [False, True])
def test_the_answers_of_the_index(opened, names):
    of = collection(names=names)
    engine = opened()
    engine.store(of.stored())
    same_answers(of, engine.search(of.vectors(), K), 1e-6)
    engine.close()


@every_engine
@pytest.mark.parametrize("spherical", [True, False])
def test_by_expected_distance(opened, spherical):
    """With the one coordinate more; the calibration reads distances of the means."""
    of = collection("expected", spherical=spherical)
    engine = opened()
    engine.store(of.stored())
    same_answers(of, engine.search(of.vectors(), K), 2e-6)
    engine.close()


@every_engine
@pytest.mark.parametrize("spherical", [True, False])
def test_a_guard_over_the_engine(opened, spherical):
    """Its answers are those of exact search, of one query and of many; distances are found out."""
    of = collection(spherical=spherical)
    engine = opened()
    engine.store(of.stored())

    def search(queries, k):
        return engine.search(queries, k).ids

    items, queries = (e.mean.detach().numpy() for e in (of.items, of.queries))
    distance = "arccos" if spherical else "euclidean"
    plain = Guard(items, of.labels, precision=0.6, distance=distance)
    guard = Guard(items, of.labels, ids=of.index.ids, search=search, precision=0.6)
    assert guard.embedder.settings.distance == distance
    assert guard.recall == 1
    wanted, found = plain.ask(queries), guard.ask(queries)
    assert found.label.tolist() == wanted.label.tolist()
    assert found.answered.any()
    np.testing.assert_allclose(found.probability, wanted.probability, rtol=0, atol=1e-6)
    alone = [guard.ask(query[None])[0].label for query in queries[:20]]
    assert alone == wanted.label[:20].tolist()
    engine.close()


@every_engine
def test_not_on_the_sphere(opened):
    of = collection(spherical=False)
    engine = opened()
    engine.store(of.stored())
    same_answers(of, engine.search(of.vectors(), K), 5e-6)
    engine.close()


@every_engine
def test_by_cosine(opened):
    """A cosine near 1 has lost digits of a small distance."""
    of = collection()
    engine = opened(metric="cosine")
    engine.store(of.stored())
    same_answers(of, engine.search(of.vectors(), K), 1e-5)
    engine.close()


@every_engine
def test_it_is_there_after_a_restart(opened):
    of = collection(names=True)
    engine = opened()
    assert len(engine) == 0
    with pytest.raises(InputError, match="store items first"):
        engine.search(of.vectors(), K)
    engine.store(of.stored())
    engine.store(of.stored())
    first = engine.search(of.vectors(), K)
    assert len(engine) == 300
    engine.close()
    again = opened()
    assert len(again) == 300
    for name, value in vars(again.search(of.vectors(), K)).items():
        np.testing.assert_array_equal(value, getattr(first, name), err_msg=name)
    again.close()


@every_engine
def test_what_is_kept_of_an_item(opened):
    of = collection()
    engine, items = opened(), of.stored()
    for part in items.batches(170):
        engine.store(part)
    found = engine.search(items.vectors, 1)
    np.testing.assert_array_equal(found.ids[:, 0], items.ids)
    np.testing.assert_array_equal(found.labels[:, 0], items.labels)
    np.testing.assert_allclose(found.epistemic[:, 0], items.epistemic, rtol=1e-12)
    np.testing.assert_allclose(found.spread[:, 0], items.spread, rtol=1e-12)
    assert found.distances.max() < 1e-3
    engine.close()


@every_engine
def test_the_same_id_is_the_same_item(opened):
    of = collection()
    engine, items = opened(), of.stored()
    engine.store(items)
    moved = StoredItems(items.ids[:1], -items.vectors[:1], np.array([99]), *np.ones((2, 1)))
    engine.store(moved)
    assert len(engine) == 300
    found = engine.search(moved.vectors, 1)
    assert (found.ids[0, 0], found.labels[0, 0], found.epistemic[0, 0]) == (items.ids[0], 99, 1.0)
    engine.close()


@every_engine
def test_more_neighbours_than_items(opened):
    of = collection()
    engine = opened()
    engine.store(next(of.stored().batches(7)))
    found = engine.search(of.vectors()[:2], K)
    assert (found.ids[:, :7] >= 0).all()
    assert (found.ids[:, 7:] == -1).all()
    assert np.isinf(found.distances[:, 7:]).all()
    assert np.isfinite(found.distances[:, :7]).all()
    assert (np.diff(found.distances[:, :7]) >= 0).all()
    engine.close()


@every_engine
def test_refusals(opened):
    of = collection()
    engine, items = opened(), of.stored()
    engine.store(items)
    wider = StoredItems.of(of.items, of.labels, spherical=True, rank_by="expected")
    with pytest.raises(InputError, match=r"vectors.*\[N, 7\].* has 6"):
        engine.store(wider)
    with pytest.raises(InputError, match=r"vectors.*\(300, 7\).*\[N, 6\]"):
        engine.search(wider.vectors, K)
    with pytest.raises(InputError, match="k=0"):
        engine.search(of.vectors(), 0)
    with pytest.raises(NonFiniteError, match="vectors hold NaN"):
        engine.search(of.vectors() * np.nan, K)
    engine.close()
    with pytest.raises(InputError, match="metric"):
        opened(metric="hamming")


@pytest.mark.parametrize("opened", ["pgvector", "lance", "qdrant_edge"], indirect=True)
def test_an_hnsw_index(opened):
    """Nearly the same neighbours; of those that it finds, the same distances."""
    g = np.random.default_rng(0)
    x = g.normal(size=(3_000, 16)).astype(np.float32)
    numbers = g.random((2, 3_000))
    exact = opened()
    exact.store(StoredItems(np.arange(3_000), x, np.arange(3_000) % 5, *numbers))
    asked = x[:40] + 0.3 * g.normal(size=(40, 16)).astype(np.float32)
    truth = exact.search(asked, 60)
    exact.close()
    graph = opened(exact=False, ef=20)
    graph.build_hnsw(links=4, ef=100)
    found = graph.search(asked, 60)
    assert (found.ids >= 0).all()  # ef follows k
    graph.ef = 600
    recalls = [np.mean(ids_of.ids[:, :, None] == truth.ids[:, None]) * 60
               for ids_of in (found, graph.search(asked, 60))]  # fmt: skip
    assert 0.7 < recalls[0] < 0.98  # so few links miss some
    assert recalls[1] > recalls[0] + 0.01  # and more candidates find them
    whole = np.linalg.norm(asked[:, None].astype(float) - x[found.ids].astype(float), axis=2)
    np.testing.assert_allclose(found.distances, whole, rtol=1e-5)
    graph.close()
    again = opened()
    np.testing.assert_array_equal(again.search(asked, 60).ids, truth.ids)
    again.close()
