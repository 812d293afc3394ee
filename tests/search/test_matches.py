"""Queries whose matches are named rather than labelled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplace_metric.errors import InputError, LabelError, NotFittedError
from laplace_metric.search import Index

K, DEPTH = 5, 30


def named(labels, of_items, ids) -> list[list]:
    """The ids of the items of each label."""
    return [[i for i, there in zip(ids, of_items, strict=True) if there == own] for own in labels]


@pytest.fixture(scope="module")
def problem(points, embedder):
    """An index without labels of eight classes, and queries of all twelve with their matches."""
    x, y = points
    kept = y < 8
    gallery, of_items = x[200:400][kept[200:400]], y[200:400][kept[200:400]].tolist()
    ids = [f"item {i}" for i in range(len(gallery))]
    index = embedder.index(gallery, ids=ids, progress=False)
    return index, x[400:], named(y[400:].tolist(), of_items, ids), (gallery, of_items, ids)


def test_named_matches_are_those_of_labels(problem, points, embedder):
    index, queries, matches, (gallery, of_items, ids) = problem
    by_name = index.labelled_hits(queries, k=DEPTH, matches=matches)
    labelled = embedder.index(gallery, of_items, ids, progress=False)
    by_label = labelled.labelled_hits(queries, points[1][400:], k=DEPTH)
    assert np.array_equal(by_name.match, by_label.match)
    assert np.array_equal(by_name.known, by_label.known)
    assert 0 < int(by_name.known.sum()) < len(by_name)
    assert by_name.codes is None
    assert by_name.classes is None
    some = by_name.take(np.array([3, 1]))
    assert np.array_equal(some.match, by_name.match[[3, 1]])
    assert np.array_equal(some.known, by_name.known[[3, 1]])


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, set])
def test_matches_of_any_kind_and_order(kind, points, embedder):
    x = points[0]
    index = embedder.index(x[:20], progress=False)
    wanted = [[7, 3, 3, 19], [], [0]]
    given = [kind(row) if row else [] for row in wanted]
    found = index.labelled_hits(x[:3], k=20, matches=given)
    assert [set(p[m].tolist()) for p, m in zip(found.hits.positions, found.match, strict=True)] == [
        set(row) for row in wanted
    ]
    assert found.known.tolist() == [True, False, True]
    nobody = index.labelled_hits(x[:3], k=20, matches=[[], [], []])
    assert not bool(nobody.match.any() | nobody.known.any())


def test_places_without_an_item_are_no_match(points, embedder):
    """An approximate engine leaves -1: no item, also not the last one of the query before."""
    from dataclasses import replace

    from laplace_metric.search import _relevance

    x = points[0]
    index = embedder.index(x[:20], progress=False)
    relevance = _relevance.relevance_of(index.items, None, [[19], [4, 19]])
    found = index.labelled_hits(x[:2], k=3, matches=[[], []]).hits
    missing = replace(found, positions=np.array([[19, -1, -1], [-1, 4, -1]]))
    encoded, _ = index.encoder.all(index.encoder.read("queries", x[:2]), progress=False)
    assert relevance(encoded, [])(missing).match.tolist() == [
        [True, False, False],
        [False, True, False],
    ]


def test_a_calibration_with_matches_says_all_but_labels(problem, tmp_path, embedder):
    index, queries, matches, _ = problem
    half = len(queries) // 2
    index = Index(index.encoder, index._state)
    calibration = index.calibrate(queries[:half], k=K, depth=DEPTH, matches=matches[:half])
    result = index.search(queries[half:], k=K)
    assert result.match_probability.shape == (len(queries) - half, K)
    for what in (result.label, result.label_probability, result.labels, result.ambiguity):
        assert what is None
    match = index.labelled_hits(queries[half:], k=K, matches=matches[half:])
    right, first = match.match[:, 0], result.match_probability[:, 0].numpy()
    assert float(first[right].mean()) > float(first[~right].mean()) + 0.2
    assert float(result.unknown[~match.known].float().mean()) > 0.15
    assert float(result.unknown[match.known].float().mean()) < 0.15
    assert "label" not in result.columns()
    assert calibration.guarantee(recall=0.5).coverage > 0
    answers = index.ask(queries[half:], probability=0.3)
    assert 0 < answers.answered.sum() < len(answers)
    nearest = result.ids[:, 0].astype(object)
    assert (answers.label == np.where(answers.answered, nearest, None)).all()
    sets = index.retrieval_sets(queries[half:], alpha=0.2)
    covered = (sets.members[:, :K].numpy() & match.match).any(1)[match.known]
    assert float(covered.mean()) > 0.6
    for refused in (
        lambda: index.label_sets(queries),
        lambda: calibration.guarantee(recall=0.5, of="label"),
        lambda: calibration.quality(of="label"),
        calibration.held_out_labels,
        lambda: calibration.label_scores(match.hits),
    ):
        with pytest.raises(NotFittedError, match="calibrated with matches="):
            refused()
    index.save(tmp_path / "saved")
    again = Index.load(tmp_path / "saved", embedder).search(queries[half:], k=K)
    assert np.array_equal(again.match_probability, result.match_probability)
    assert np.array_equal(again.p_value, result.p_value)
    assert again.label is None


def test_an_evaluation_with_matches(problem):
    index, queries, matches, _ = problem
    report = index.evaluate(queries, matches=matches)
    known = torch.tensor([len(row) > 0 for row in matches])
    assert report.known_share == pytest.approx(float(known.double().mean()))
    assert report.decides_about == "match"
    index = Index(index.encoder, index._state)
    index.calibrate(queries[:150], matches=matches[:150])
    report = index.evaluate(queries[150:], ood=-queries[:50], matches=matches[150:])
    assert report.ece < 0.2
    assert report.ood.unknown >= 0.4
    nearest = index.search(queries[150:], k=1)
    torch.testing.assert_close(report.probability, nearest.match_probability[:, 0])
    assert not [name for name, _ in report.rows() if "label" in name]
    assert report.retrieval_sets.coverage > 0.8


@pytest.mark.parametrize(("rank_by", "depth"), [("mean", 3), ("shared", 50)])
def test_a_search_looks_as_deep_as_it_has_to(rank_by, depth, points, embedder, monkeypatch):
    """Without labels nobody votes; the shortlist of "shared" is as long as the calibration's."""
    x, y = points
    index, plain, seen = (
        embedder.index(x[:200], rank_by=rank_by, progress=False),
        Index._nearest,
        [],
    )
    index.calibrate(x[200:400], matches=named(y[200:400].tolist(), y[:200].tolist(), range(200)))
    monkeypatch.setattr(
        Index, "_nearest", lambda self, q, k, *some: seen.append(k) or plain(self, q, k, *some)
    )
    index.search(x[400:], k=3)
    assert seen == [depth]


def test_matches_may_judge_an_index_with_labels(points, embedder):
    """Its votes remain evidence, but no label is learnt: a match need not be a class."""
    x, y = points
    index = embedder.index(x[200:400], y[200:400], progress=False)
    matches = named(y[400:].tolist(), y[200:400].tolist(), range(200))
    index.calibrate(x[400:], matches=matches)
    result = index.search(x[400:], k=K)
    assert result.label is None
    assert result.ambiguity is not None
    assert result.labels is not None
    index.calibrate(x[400:], y[400:])
    assert index.search(x[400:], k=K).label is not None
    assert index.evaluate(x[400:], y[400:]).decides_about == "label"
    report = index.evaluate(x[400:], matches=matches)
    assert report.decides_about == "match", "matches say nothing of labels"


REFUSED = {
    "too few": ([[1]], InputError, "matches has 1 lists for 3 queries"),
    "nobody's": ([[1], [77, 78], []], InputError, r"matches \[77, 78\] are not in the index"),
    "strings": ([["a"], [], []], InputError, r"matches \['a'\] are not in the index"),
    "mixed": ([["a"], [1], []], InputError, "matches hold numbers and strings"),
    "one text": ("abc", InputError, "matches is a str: pass a list with a list of ids"),
    "a text a query": (["a", "b", "c"], InputError, r"matches\[0\] is 'a': pass a list of ids"),
    "a number a query": ([[1], 2, 3], InputError, r"matches\[1\] is 2: pass a list of ids"),
    "fractions": ([[1.5], [], []], InputError, r"matches\[0\] are float64"),
    "a number": (3, InputError, "matches is a int"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_matches_that_are_refused(case, points, embedder):
    given, error, message = REFUSED[case]
    x = points[0]
    index = embedder.index(x[:20], progress=False)
    for call in (index.labelled_hits, index.calibrate, index.evaluate):
        with pytest.raises(error, match=message):
            call(x[:3], matches=given)


def test_labels_and_matches_exclude_each_other(points, embedder):
    x, y = points
    index = embedder.index(x[:20], y[:20], progress=False)
    with pytest.raises(LabelError, match="two answers.*one question"):
        index.calibrate(x[:3], y[:3], matches=[[], [], []])
    with pytest.raises(LabelError, match="no labels.*or matches="):
        embedder.index(x[:20], progress=False).calibrate(x[:3])
