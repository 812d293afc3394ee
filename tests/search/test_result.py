"""What a search hands out: rows of a table, sets, and a warning when it has gone stale."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from laplace_metric.calibration import Rule
from laplace_metric.calibration.probability._features import PairFeatures
from laplace_metric.errors import (
    InputError,
    MissingPackageError,
    StaleCalibrationWarning,
)
from laplace_metric.search import IVF

KNOWN = 8
"""Classes of which the index has items; the others are out-of-distribution."""


@pytest.fixture
def index(points, embedder):
    """Two hundred items, named, of the first eight classes."""
    x, y = points
    rows = (y[:300] < KNOWN).nonzero().flatten()
    names = [f"i{row}" for row in rows.tolist()]
    return embedder.index(x[rows], y[rows], names, progress=False)


@pytest.fixture
def calibrated(index, points):
    x, y = points
    index.calibrate(x[300:], y[300:], k=6, depth=30)
    return index


def test_a_table_says_what_the_tensors_say(calibrated, points):
    pandas = pytest.importorskip("pandas")
    x, _ = points
    result = calibrated.search(x[300:304], k=3, alpha=0.1)
    table = result.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    pairs = {"id": result.ids, "item_label": result.labels, "distance": result.distance}
    pairs |= {"distance_sd": result.distance_sd, "match_probability": result.match_probability}
    queries = {"epistemic": result.epistemic}
    queries |= {"ambiguity": result.ambiguity, "label": result.label}
    queries |= {"label_probability": result.label_probability, "p_value": result.p_value}
    queries |= {"unknown": result.p_value <= 0.1}
    assert list(table) == ["query", "rank", *pairs, *queries]
    wide = {"query": np.arange(4), **queries}
    expected = {name: np.asarray(values)[:, None].repeat(3, 1) for name, values in wide.items()}
    expected |= {"rank": [[1, 2, 3]] * 4, **pairs}
    for name, values in expected.items():
        assert np.array_equal(table[name].to_numpy().reshape(4, 3), np.asarray(values)), name
    at = result.positions.numpy()
    assert np.array_equal(result.ids, calibrated.ids[at])
    assert np.array_equal(result.labels, calibrated.labels[at])


def test_what_is_not_known_is_left_out(embedder, points, monkeypatch):
    x, _ = points
    result = embedder.index(x[:20], progress=False).search(x[:2], k=2)
    assert list(result.columns()) == [
        "query", "rank", "id", "distance", "distance_sd", "epistemic",
    ]  # fmt: skip
    assert result.unknown is None
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"to_pandas\(\).*pip install pandas"):
        result.to_pandas()


def test_a_warning_once_a_tenth_has_changed(calibrated, points):
    x, y = points
    n = len(calibrated)
    names = [f"new {i}" for i in range(n // 10 + 1)]
    calibrated.add(x[: n // 10], y[: n // 10], names[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrated.search(x[:2], k=2)
    calibrated.add(x[-1:], y[-1:], names[:1])
    said = f"{n // 10 + 1} items were added or removed since .* with {n}: .* Calibrate again"
    for ask in (lambda: calibrated.search(x[:2], k=2), lambda: calibrated.retrieval_sets(x[:2])):
        with pytest.warns(StaleCalibrationWarning, match=said):
            ask()


def test_labelled_hits_compare_labels(index, points):
    x, y = points
    labelled = index.labelled_hits(x[300:340], y[300:340], k=4)
    theirs = index.labels[labelled.hits.positions]
    assert np.array_equal(labelled.match, theirs == y[300:340, None].numpy())
    assert np.array_equal(labelled.known, y[300:340] < KNOWN)
    assert len(labelled) == 40
    assert index.labelled_hits(x[:3], y[:3], k=10_000).match.shape == (3, len(index))


def test_nobody_matches_where_nobody_is_found(points, embedder):
    x, y = points
    index = embedder.index(x[:200], y[:200] * 0, engine=IVF(lists=20, probes=1), progress=False)
    labelled = index.labelled_hits(x[200:220], y[200:220] * 0, k=60)
    assert np.array_equal(labelled.match, labelled.hits.positions >= 0)
    assert not bool(labelled.match.all())


def test_sets_hold_what_scores_as_first_matches_do(calibrated, points):
    x, _ = points
    sets = calibrated.retrieval_sets(x[300:360], alpha=0.2)
    calibration = calibrated.calibration
    result = calibrated.search(x[300:360], k=30)
    assert torch.equal(sets.positions, result.positions)
    logit = calibration.matcher.logit(PairFeatures.of(result.hits))
    assert np.array_equal(sets.members, calibration.members(logit, 0.2))
    p, p_value = result.match_probability[:, 0], result.p_value
    wide = calibrated.search(x[300:360], k=30, alpha=0.3)
    assert bool((wide.unknown & (p >= 0.2)).any())
    near = Rule.at(0.2, "match", 0.3)(wide).answered
    assert np.array_equal(near, (p >= 0.2) & (p_value > 0.3))
    sure = result.label_probability
    by_label = Rule.at(0.9, "label", 0.3)(wide).answered
    assert np.array_equal(by_label, (sure >= 0.9) & (p_value > 0.3))
    assert not np.array_equal(by_label, Rule.at(0.9, "match", 0.3)(wide).answered)
    rule = calibration.guarantee(recall=0.5, of="label")
    said = f"answers with the label if its probability is at least {rule.value:.4f}"
    assert str(rule).startswith(said)
    assert np.array_equal(rule(result).answered, (sure >= rule.value) & (p_value > 0.05))
    with pytest.raises(InputError, match="of='labels'"):
        Rule.at(0.9, "labels")
    for alpha in (0.02, 0.3, None):
        rule = calibration.guarantee(recall=0.5, of="match", alpha=alpha)
        known = p_value > (-1 if alpha is None else alpha)
        assert np.array_equal(rule(result).answered, (p >= rule.value) & known)
    assert set(result.signals) == {"epistemic", "match probability"}
    first = calibrated.search(x[300:360], k=1)
    signal = result.signals["match probability"]
    torch.testing.assert_close(  # float32 evidence of blocks of another shape
        signal, first.match_probability[:, 0], rtol=1e-5, atol=1e-6
    )
    assert 0 < float(sets.members.double().mean()) < 1
    assert sets.sizes.tolist() == [len(sets[q]) for q in range(len(sets))]
    for q in range(5):
        assert list(sets[q]) == [
            i for i, m in zip(result.ids[q], sets.members[q], strict=True) if m
        ]
    larger = calibrated.retrieval_sets(x[300:360], alpha=0.1)
    assert bool((larger.members | ~sets.members).all())


def test_items_that_come_while_an_index_is_calibrated_count_as_changes(index, points):
    x, y = points
    before = index._now()
    labelled = before.labelled_hits(x[300:], y[300:], 30)
    index.add(x[:3], y[:3], ["new 1", "new 2", "new 3"])
    index.learn(labelled, 6, since=before)
    assert index.changes == 3
