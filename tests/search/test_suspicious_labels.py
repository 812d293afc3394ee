"""Labels of an index's own items that look wrong: each item against an index of the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.search import _index

FIRST = 120


@pytest.fixture(scope="module")
def index(points, embedder):
    """Names as labels, three of them wrong."""
    x, y = points
    names = np.array([f"class {c}" for c in y.tolist()])
    given = names[:FIRST].copy()
    given[[5, 40, 77]] = "class 0"
    index = embedder.index(x[:FIRST], given, progress=False)
    index.calibrate(x[300:500], names[300:500], portable=True)
    return index


def test_each_item_is_judged_by_all_others(index, points, embedder):
    x, _ = points
    review = index.suspicious_labels(FIRST)
    assert sorted(review.positions.tolist()) == list(range(FIRST))
    place = {row: i for i, row in enumerate(review.positions.tolist())}
    for row in (5, 17, 40, 77, 111):
        others = np.delete(np.arange(FIRST), row)
        alone = embedder.index(x[others], index.labels[others], progress=False)
        hits = alone.search(x[row : row + 1], k=50).hits
        judged = index.calibration.assess(hits)
        scores = index.calibration.label_scores(hits)[0]
        of = alone.labels[hits.positions[0]]
        mine = float(scores[of == index.labels[row]].clip(min=0).max())
        i = place[row]
        assert float(review.probability[i]) == pytest.approx(mine, abs=1e-6)
        assert review.suggested[i] == of[int(judged.carrier[0])]
        best = float(judged.label_probability[0])
        assert float(review.suggested_probability[i]) == pytest.approx(best, abs=1e-6)
        assert (review.ids[i], review.labels[i]) == (row, index.labels[row])


def test_the_least_likely_come_first(index):
    review = index.suspicious_labels(FIRST)
    pairs = review.probability.tolist(), (-review.suggested_probability).tolist()
    keys = list(zip(*pairs, strict=True))
    assert keys == sorted(keys)
    assert {5, 40, 77} <= set(review.positions[:30].tolist())
    few = index.suspicious_labels(7)
    assert torch.equal(few.positions, review.positions[:7])
    assert len(few) == 7
    assert "7 items, of which" in repr(few)


def test_blocks_of_items(index, monkeypatch):
    whole = index.suspicious_labels(FIRST)
    monkeypatch.setattr(_index, "BLOCK", 17)
    parts = index.suspicious_labels(FIRST)
    assert torch.equal(parts.positions, whole.positions)
    torch.testing.assert_close(parts.probability, whole.probability)
    assert parts.suggested.tolist() == whole.suggested.tolist()


def test_a_label_that_no_other_item_has_is_left_out(points, embedder):
    x, y = points
    labels = y[:FIRST].clone()
    labels[[8, 31]] = torch.tensor([100, 101])
    index = embedder.index(x[:FIRST], labels, progress=False)
    index.calibrate(x[300:500], y[300:500])
    review = index.suspicious_labels(FIRST)
    assert len(review) == FIRST - 2
    assert not {8, 31} & set(review.positions.tolist())


def test_what_it_needs(points, embedder):
    x, y = points
    index = embedder.index(x[:FIRST], y[:FIRST], progress=False)
    with pytest.raises(NotFittedError, match="not calibrated"):
        index.suspicious_labels()
    index.calibrate(x[300:500], y[300:500])
    with pytest.raises(InputError, match="most"):
        index.suspicious_labels(0)
    plain = embedder.index(x[:FIRST], progress=False)
    matches = [[i for i in range(FIRST) if y[i] == c] for c in y[300:400].tolist()]
    plain.calibrate(x[300:400], matches=matches)
    with pytest.raises(NotFittedError, match="matches="):
        plain.suspicious_labels()
