"""The vote of the nearest items' labels, against loops in plain Python."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.calibration._hits import SearchHits
from laplace_metric.calibration.labels import _votes
from laplace_metric.calibration.labels._votes import VOTES, LabelVotes
from laplace_metric.calibration.probability._features import PairFeatures
from laplace_metric.errors import NonFiniteError


def by_hand(distances: list[float], labels: list[int]):
    """Share, weighted and ratio of each neighbour, and the ambiguity."""
    voters = [(d, y) for d, y in list(zip(distances, labels, strict=True))[:VOTES] if d < math.inf]
    if not voters:
        return [0.0] * len(labels), [0.0] * len(labels), [1.0] * len(labels), 0.0
    reach = max(d for d, _ in voters) ** 2 - voters[0][0] ** 2
    raw = [math.exp(-(d**2 - voters[0][0] ** 2) / reach) if reach > 0 else 1.0 for d, _ in voters]
    weights = [w / sum(raw) for w in raw]
    share, weighted, ratio = [], [], []
    for d, y in zip(distances, labels, strict=True):
        share.append(sum(label == y for _, label in voters) / len(voters))
        agreed = zip(weights, voters, strict=True)
        weighted.append(sum(w for w, (_, label) in agreed if label == y))
        other = min((e for e, label in voters if label != y), default=max(e for e, _ in voters))
        ratio.append(1.0 if math.isinf(d) else d / (d + other) if d + other > 0 else 0.5)
    p = {y: sum(w for w, (_, z) in zip(weights, voters, strict=True) if z == y) for _, y in voters}
    return share, weighted, ratio, -sum(x * math.log(x) for x in p.values() if x > 0)


@st.composite
def neighbours(draw):
    n = draw(st.integers(1, VOTES + 6))
    known = draw(st.integers(0, n))
    scale = draw(st.sampled_from([1e-12, 1.0, 1e12]))
    gaps = draw(st.lists(st.integers(0, 5), min_size=known, max_size=known))
    distances = sorted(scale * gap for gap in gaps) + [math.inf] * (n - known)
    labels = [draw(st.integers(0, 3)) for _ in range(known)] + [-1] * (n - known)
    return distances, labels


@given(neighbours())
@settings(deadline=None, max_examples=200)
def test_it_is_the_vote_by_hand(query):
    distances, labels = query
    ours = LabelVotes.of(np.array([distances]), np.array([labels]))
    share, weighted, ratio, ambiguity = by_hand(distances, labels)
    exists = [d < math.inf for d in distances]
    for name, wanted in (("share", share), ("weighted", weighted), ("ratio", ratio)):
        got = getattr(ours, name)[0]
        assert [x for x, e in zip(got.tolist(), exists, strict=True) if e] == pytest.approx(
            [x for x, e in zip(wanted, exists, strict=True) if e], abs=1e-12
        ), name
        assert bool(((got >= 0) & (got <= 1 + 1e-12)).all())
    assert ours.ambiguity.item() == pytest.approx(ambiguity, abs=1e-9)


def test_blocks_are_the_whole(monkeypatch):
    g = np.random.default_rng(0)
    distance, labels = np.sort(g.random((9, 30)), 1), np.arange(270).reshape(9, 30)
    whole = LabelVotes.of(distance, labels % 4)
    monkeypatch.setattr(_votes, "BLOCK_CELLS", 1)
    parts = LabelVotes.of(distance, labels % 4)
    assert all(np.array_equal(a, getattr(parts, name)) for name, a in vars(whole).items())


def test_half_of_the_labels_is_the_most_ambiguous_of_two():
    distance = np.ones((1, 20))
    for n, wanted in (
        (0, 0.0),
        (10, math.log(2)),
        (5, -0.25 * math.log(0.25) - 0.75 * math.log(0.75)),
    ):
        labels = (np.arange(20) < n)[None].astype(np.int64)
        assert LabelVotes.of(distance, labels).ambiguity.item() == pytest.approx(wanted, abs=1e-12)


@given(neighbours(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100)
def test_the_order_of_the_neighbours_decides_nothing(query, chance):
    """A ranking by the expected distance, say, need not be one by the distance of the means."""
    distances, labels = (x[:VOTES] for x in query)
    order = chance.sample(range(len(distances)), len(distances))
    one = LabelVotes.of(np.array([distances]), np.array([labels]))
    other = LabelVotes.of(np.array([distances])[:, order], np.array([labels])[:, order])
    for name in ("share", "weighted", "ratio"):
        moved = getattr(one, name)[:, order]
        np.testing.assert_allclose(getattr(other, name), moved, rtol=0, atol=1e-12, err_msg=name)
    assert other.ambiguity[0] == pytest.approx(one.ambiguity[0], abs=1e-9)


def test_rounding_of_equal_distances_has_no_weight():
    """Copies of an item, whose distances a float32 product rounds by 1e-6 of their square."""
    rounded = np.sqrt(4 * (1 + 1e-6 * np.array([[0.0, 1.0, -0.7, 0.3, 0.9, -1.0]])))
    votes = LabelVotes.of(rounded, np.array([[0, 1, 2, 0, 1, 2]]))
    np.testing.assert_allclose(votes.weighted, 1 / 3, rtol=0.02)
    assert votes.ambiguity.item() == pytest.approx(math.log(3), abs=1e-3)


def test_a_far_neighbour_in_front_takes_no_weight_from_the_nearest():
    votes = LabelVotes.of(np.array([[9.0, 0.2, 0.3, 9.0001]]), np.array([[0, 1, 1, 0]]))
    near = 1 / (1 + np.exp(-1))  # of two near ones and two at the end of the reach
    np.testing.assert_allclose(votes.weighted, [[1 - near, near, near, 1 - near]], atol=1e-3)


def test_nan_among_the_evidence_is_an_error_and_no_probability():
    distance = np.array([[0.1, 0.2], [0.3, np.nan]])
    with pytest.raises(NonFiniteError, match=r"distance.*NaN.*row 1.*1 rows"):
        LabelVotes.of(distance, np.array([[0, 1], [1, 1]]))
    fine = SearchHits(np.zeros((2, 2), int), np.abs(np.nan_to_num(distance)), np.ones((2, 2)),
                      None, np.zeros(2))  # fmt: skip
    PairFeatures.of(fine)
    for field, value in (
        ("distance", distance),
        ("distance_sd", np.array([[1.0, np.nan], [1.0, 1.0]])),
        ("epistemic", np.array([0.0, np.nan])),
    ):
        name = {"distance_sd": "spread"}.get(field, field)
        row = 0 if field == "distance_sd" else 1
        with pytest.raises(NonFiniteError, match=f"evidence '{name}'.*query {row}.*NaN"):
            PairFeatures.of(replace(fine, **{field: value}))


def test_nan_where_there_is_no_neighbour_is_not_looked_at():
    hits = SearchHits(np.array([[0, -1]]), np.array([[0.1, np.nan]]), np.array([[1.0, np.nan]]),
                      None, np.zeros(1))  # fmt: skip
    assert PairFeatures.of(hits).values[0, 1].tolist() == [0.0] * 9
