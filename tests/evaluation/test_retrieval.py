"""Retrieval metrics against pytorch-metric-learning, hand-computed cases and brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplace_metric.errors import InputError, UndefinedMetricWarning
from laplace_metric.evaluation import map_at_k, map_at_r, nearest_neighbours, recall_at_k


def problem(seed=0, n=120, classes=6, dim=4):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=draw)
    return torch.randn(n, dim, generator=draw) + 0.5 * labels[:, None], labels


def brute_force(points, labels, gallery, gallery_labels, k, among_queries):
    """Recall@k and AP@k of each query by Python loops; NaN without relevant items."""
    recall, precision = [], []
    for row in range(len(points)):
        far = ((gallery - points[row]) ** 2).sum(1)
        order = [i for i in np.argsort(far, kind="stable") if not (among_queries and i == row)]
        rel = [int(gallery_labels[i] == labels[row]) for i in order]
        if sum(rel) == 0:
            recall.append(np.nan)
            precision.append(np.nan)
            continue
        recall.append(float(any(rel[:k])))
        total = sum(sum(rel[: i + 1]) / (i + 1) * rel[i] for i in range(k))
        precision.append(total / min(sum(rel), k))
    return recall, precision


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("among_queries", [True, False])
def test_agrees_with_brute_force(k, among_queries):
    points, labels = problem(3, n=40, classes=15)
    gallery, gallery_labels = (points, labels) if among_queries else problem(4, n=25, classes=12)
    arguments = {} if among_queries else {"gallery": gallery, "gallery_labels": gallery_labels}
    arrays = [x.double().numpy() for x in (points, labels, gallery, gallery_labels)]
    recall, precision = brute_force(*arrays, k, among_queries)
    assert np.isnan(recall).any()
    ours = recall_at_k(points, labels, k, **arguments)
    np.testing.assert_allclose(ours.per_query, recall)
    assert ours.value == pytest.approx(np.nanmean(recall))
    assert ours.n_excluded == np.isnan(recall).sum()
    assert ours.counted.tolist() == (~np.isnan(recall)).tolist()
    ours = map_at_k(points, labels, k, **arguments)
    np.testing.assert_allclose(ours.per_query, precision)
    assert ours.value == pytest.approx(np.nanmean(precision))


def test_hand_computed():
    """Query 0 of label 0 sees labels 1 0 1 0 0: P@2 = 1/2, P@4 = 2/4, P@5 = 3/5."""
    points, labels = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]], [0, 1, 0, 1, 0, 0]
    assert recall_at_k(points, labels).per_query[0] == 0
    assert recall_at_k(points, labels, 2).per_query[0] == 1
    assert map_at_k(points, labels, 5).per_query[0] == pytest.approx((1 / 2 + 2 / 4 + 3 / 5) / 3)
    assert map_at_k(points, labels, 2).per_query[0] == pytest.approx((1 / 2) / 2)
    assert map_at_r(points, labels).per_query[0] == pytest.approx((1 / 2) / 3)


def test_no_counted_query_gives_nan_with_a_warning():
    for metric in (recall_at_k, map_at_r, lambda x, y: map_at_k(x, y, 1)):
        with pytest.warns(UndefinedMetricWarning, match="no query.*relevant item"):
            score = metric([[0.0], [1.0], [3.0]], [0, 1, 2])
        assert np.isnan(score.value)
        assert score.n_queries == 0


def test_gallery_that_holds_the_queries():
    points, labels = problem(5)
    default = recall_at_k(points, labels)
    shared = {"gallery": points, "gallery_labels": labels}
    named = recall_at_k(points, labels, **shared, exclude=torch.arange(len(points)))
    np.testing.assert_array_equal(named.per_query, default.per_query)
    assert recall_at_k(points, labels, **shared).value == 1.0
    assert default.value < 1.0


def test_one_search_serves_all():
    points, labels = problem(6)
    nearest = nearest_neighbours(points, k=60)
    for metric in (recall_at_k, map_at_k, map_at_r):
        assert metric(points, labels, neighbours=nearest).value == metric(points, labels).value
    with pytest.raises(InputError, match=r"neighbours.*\(120, 1\)"):
        map_at_k(points, labels, 5, neighbours=nearest_neighbours(points))


@pytest.mark.parametrize("with_gallery", [False, True])
def test_agrees_with_pytorch_metric_learning(with_gallery):
    pytest.importorskip("faiss", reason="AccuracyCalculator needs faiss")
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ("precision_at_1", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
    points, labels = problem()
    points, labels = torch.cat([points, points[:1]]), torch.cat([labels, torch.tensor([99])])
    others = problem(2, n=70) if with_gallery else ()
    theirs = calculator.get_accuracy(points, labels, *others)
    given = dict(zip(("gallery", "gallery_labels"), others, strict=False))
    assert recall_at_k(points, labels, **given).value == pytest.approx(theirs["precision_at_1"])
    ours = map_at_r(points, labels, **given)
    assert ours.value == pytest.approx(theirs["mean_average_precision_at_r"])
    assert (ours.n_queries, ours.n_excluded) == (120, 1)
