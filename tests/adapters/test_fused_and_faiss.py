"""FAISS's raw arrays and fused lists: which guarantees they support, and which are refused."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest

from laplace_metric.calibration import Rule, ScoreCalibration, calibrate_scores
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.integrations import StoreHits, fused_hits, read_hits

N, K = 400, 5
LARGEST = np.finfo(np.float32).max


def collection(seed, n=N):
    """Items, queries of which two thirds are near one, and that item of each."""
    g = np.random.default_rng(seed)
    items = np.random.default_rng(99).normal(size=(150, 12)).astype(np.float32)
    of = np.where(np.arange(n) % 3 > 0, g.integers(0, 150, n), -1)
    queries = np.where(of[:, None] >= 0, items[of], 0) + 0.6 * g.normal(size=(n, 12))
    return items, queries.astype(np.float32), {q: [i] if i >= 0 else [] for q, i in enumerate(of)}


@pytest.mark.parametrize("metric", ["inner_product", "l2", "type"])
def test_the_arrays_of_faiss_calibrate_with_their_metric(metric):
    faiss = pytest.importorskip("faiss")
    items, queries, qrels = collection(0)
    index = faiss.IndexFlatL2(12) if metric == "l2" else faiss.IndexFlatIP(12)
    index.add(items)
    found = index.search(queries, K)
    hits = read_hits("faiss", found, metric=index.metric_type if metric == "type" else metric)
    assert hits.kind == ("distance" if metric == "l2" else "similarity")
    np.testing.assert_array_equal(hits.scores, found[0])
    assert hits.items[3] == found[1][3].tolist()
    rule = calibrate_scores(hits.scores, qrels, items=hits.items, kind=hits.kind).guarantee(
        precision=0.6
    )
    assert rule(read_hits("faiss", found, metric=index.metric_type, k=K).scores).answered.any()


def test_places_that_faiss_fills_are_no_hits():
    faiss = pytest.importorskip("faiss")
    items, queries, _ = collection(1)
    lists = faiss.index_factory(12, "IVF32,Flat")
    lists.train(items)
    lists.add(items)
    found = lists.search(queries, 20)
    assert (found[1] == -1).any()
    hits = read_hits("faiss", found, metric="L2")
    sizes = (found[1] >= 0).sum(1)
    assert [len(hits.items[q]) for q in range(N)] == sizes.tolist()
    assert (np.isfinite(hits.scores).sum(1) == sizes).all()
    empty = read_hits("faiss", (np.full((2, 3), -LARGEST), np.full((2, 3), -1)), metric=0, k=3)
    assert empty.items == {0: [], 1: []}
    assert (empty.scores == -np.inf).all()


D, I = np.array([[0.9, 0.5], [0.8, 0.3]]), np.array([[1, 2], [3, 4]])  # noqa: E741


@pytest.mark.parametrize(
    ("answers", "metric", "error", "message"),
    [
        (D, "l2", InputError, r"D \[2\] and I \[2\]|pass \(D, I\)"),
        ((D, I, I), "l2", InputError, r"pass \(D, I\), as index\.search returns"),
        ((I, D), "l2", InputError, r"D of int64 and I of float64: pass \(D, I\)"),
        ((D, I[:1]), "l2", InputError, r"D \[2, 2\] and I \[1, 2\]"),
        ((D[0], I[0]), "l2", InputError, r"D \[2\] and I \[2\]"),
        ((D * np.nan, I), "l2", NonFiniteError, r"NaN in row 0 \(2 rows\)"),
        ((D, I), "l2", InputError, r"D falls from hit to hit in 2 of 2.*metric='inner_product'"),
        ((-D, I), "inner_product", InputError, r"D rises .* as metric='l2' does"),
        ((D, I), "cosine", InputError, r"metric='cosine' is not known.*'inner_product', 'l2'"),
        ((D, I), 2, InputError, r"metric='2' is not known"),
    ],
)
def test_other_arrays_are_refused_by_name(answers, metric, error, message):
    with pytest.raises(error, match=message):
        read_hits("faiss", answers, metric=metric)
    with pytest.raises(InputError, match="2 hits.*search for 1"):
        read_hits("faiss", (D, I), metric=0, k=1)


def test_hamming_distances_of_a_binary_index_are_read():
    faiss = pytest.importorskip("faiss")
    bits = np.random.default_rng(0).integers(0, 256, (50, 4), dtype=np.uint8)
    index = faiss.IndexBinaryFlat(32)
    index.add(bits)
    hits = read_hits("faiss", index.search(bits[:3], 4), metric=index.metric_type)
    assert hits.kind == "distance"
    assert hits.scores[:, 0].tolist() == [0, 0, 0]
    assert [ids[0] for ids in hits.items.values()] == [0, 1, 2]


def test_a_hit_without_a_score_is_named_and_decimals_are_numbers():
    scores = (0.5, None)
    points = [SimpleNamespace(points=[SimpleNamespace(id=1, score=score)]) for score in scores]
    with pytest.raises(InputError, match="qdrant.*query 1.*score None"):
        read_hits("qdrant", points, metric="cosine")
    rows = [[(1, Decimal("0.25")), (2, Decimal("0.5"))]]
    np.testing.assert_array_equal(read_hits("pgvector", rows, metric="<=>").scores, [[0.25, 0.5]])
    score = np.random.default_rng(0).random(60)
    right = np.random.default_rng(1).random(60) < 0.5
    given = [Decimal(repr(float(x))) for x in score]
    one, other = calibrate_scores(score, right), calibrate_scores(given, right)
    np.testing.assert_array_equal(one.queries.probability, other.queries.probability)


def hybrid(seed, n=N, **options):
    """Two searches, each by half of the numbers, and their fusion."""
    items, queries, qrels = collection(seed, n)
    lists = []
    for half in (slice(0, 6), slice(6, 12)):
        gaps = np.linalg.norm(queries[:, None, half] - items[None, :, half], axis=2)
        rows = gaps.argsort(1)[:, :10]
        lists.append(
            StoreHits(np.take_along_axis(gaps, rows, 1), dict(enumerate(rows.tolist())), "distance")
        )
    return lists, fused_hits(lists, **{"k": K} | options), qrels


def test_fused_scores_are_sums_of_reciprocal_ranks():
    lists, hits, _ = hybrid(0)
    assert hits.kind == "fused"
    for q in range(0, N, 37):
        score = {}
        for own in lists:
            for rank, item in enumerate(own.items[q]):
                score[item] = score.get(item, 0) + 1 / (61 + rank)
        best = sorted(score.values(), reverse=True)[:K]
        np.testing.assert_allclose(hits.scores[q], best)
        assert [score[item] for item in hits.items[q]] == pytest.approx(best)


def test_a_rule_of_a_fusion_keeps_its_precision_for_the_same_fusion(tmp_path):
    _, hits, qrels = hybrid(0, 800)
    found = calibrate_scores(hits.scores, qrels, items=hits.items, kind=hits.kind)
    rule = found.guarantee(precision=0.85)
    _, later, truth = hybrid(1, 2_000)
    answered = rule(later.scores).answered
    right = np.array([later.items[q][0] in truth[q] for q in range(2_000)])
    assert answered.mean() > 0.2
    assert right[answered].mean() >= 0.85
    found.guarantee(fpir=0.3)
    found.save(tmp_path / "scores")
    again = ScoreCalibration.load(tmp_path / "scores")
    np.testing.assert_array_equal(again.scale.values, found.scale.values)
    rule.save(tmp_path / "rule")
    assert str(Rule.load(tmp_path / "rule")) == str(rule)


def test_what_a_fused_score_does_not_say_is_refused():
    _, hits, qrels = hybrid(0)
    found = calibrate_scores(hits.scores, qrels, items=hits.items, kind=hits.kind)
    with pytest.raises(InputError, match=r"fmr=.*pair alone.*no rank"):
        found.guarantee(fmr=0.1)
    other = hybrid(1, constant=1)[1]
    with pytest.raises(InputError, match=r"scores reach 1.*0\.03279 at most.*another fusion"):
        found.probability(other.scores)
    alone = np.broadcast_to(1 / (61 + np.arange(5.0)), (N, 5))
    with pytest.raises(InputError, match=r"fused score 0\.01639.*ranks"):
        calibrate_scores(alone, np.arange(N)[:, None] % 2 * np.ones((1, 5)), kind="fused")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda lists: lists[:1], "answers are of 1 searches: fuse two or more"),
        (lambda lists: [], "answers are of 0 searches"),
        (lambda lists: [lists[0], hybrid(0, 30)[0][1]], r"answers are of \[400, 30\] queries"),
        (lambda lists: [lists[0].items, lists[1].items], "pass the StoreHits of each search"),
    ],
)
def test_lists_that_cannot_be_fused_are_refused_by_name(given, message):
    with pytest.raises(InputError, match=message):
        fused_hits(given(hybrid(0)[0]))
    with pytest.raises(InputError, match="constant"):
        fused_hits(hybrid(0)[0], constant=-1)


def test_the_fusion_of_qdrant_is_read():
    qdrant = pytest.importorskip("qdrant_client")
    models = qdrant.models
    client, size = qdrant.QdrantClient(":memory:"), models.VectorParams(size=6, distance="Euclid")
    client.create_collection("items", vectors_config={"a": size, "b": size})
    items, queries, _ = collection(0, 30)
    points = [
        models.PointStruct(id=i, vector={"a": x[:6].tolist(), "b": x[6:].tolist()})
        for i, x in enumerate(items)
    ]
    client.upsert("items", points)
    answers = [
        client.query_points(
            "items",
            prefetch=[
                models.Prefetch(query=x[:6].tolist(), using="a", limit=10),
                models.Prefetch(query=x[6:].tolist(), using="b", limit=10),
            ],
            query=models.FusionQuery(fusion=models.Fusion.RRF),
            limit=K,
        )
        for x in queries
    ]
    hits = read_hits("qdrant", answers, metric="rrf")
    assert hits.kind == "fused"
    assert (np.diff(hits.scores, axis=1) <= 0).all()
