"""Labels or None, tables, and figures in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.plots import threshold_plot


def test_a_label_where_the_index_is_sure_and_none_elsewhere(index, points, names):
    x = points[0][300:]
    found, result = index.classify(x, 0.9), index.search(x, k=1)
    assert torch.equal(found.unknown, result.unknown)
    assert bool(result.unknown.any())
    for label, probability, expected, p, unknown in zip(
        found.labels, found.probability, result.label, result.label_probability,
        result.unknown, strict=True,
    ):  # fmt: skip
        assert probability == p
        assert label == (expected if p >= 0.9 and not unknown else None)
    assert 10 < int(found.answered.sum()) < 90
    assert found[0] == (found.labels[0], float(found.probability[0]), found.reason[0])


def test_a_precision_is_the_threshold_that_promises_it(index, points):
    threshold = index.calibration.threshold_for(precision=0.6, of="label")
    x = points[0][300:]
    for found in (index.classify(x, precision=0.6), index.classify(x, threshold)):
        assert found.threshold == threshold.value
        assert np.array_equal(found.labels, index.classify(x, threshold.value).labels)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"threshold": 0.5, "precision": 0.9}, InputError, "pass one"),
        ({"threshold": 1.5}, InputError, "threshold=1.5"),
        ({"precision": 0.99999}, InputError, "precision"),
    ],
)
def test_bad_thresholds_are_named(how, error, message, index, points):
    with pytest.raises(error, match=message):
        index.classify(points[0][:3], **how)


def test_without_labels_there_is_nothing_to_answer(embedder, points):
    x, _ = points
    index = embedder.index(x[100:200], progress=False)
    with pytest.raises(NotFittedError, match="call index.calibrate"):
        index.classify(x[:3])
    index.calibrate(x[200:300], matches=[[i] for i in range(100)])
    with pytest.raises(NotFittedError, match="calibrated with matches="):
        index.classify(x[:3])


def test_an_embedding_as_a_table(embedder, points):
    embedding = embedder(points[0][:7])
    table = embedding.to_pandas(means=True)
    assert table.shape == (7, 6 + 6)
    assert table.epistemic.tolist() == embedding.epistemic.tolist()
    assert table.mean_5.tolist() == embedding.mean[:, 5].tolist()


def test_the_curves_of_a_threshold_are_counts():
    p, right = [0.9, 0.9, 0.5, 0.2], [1, 0, 1, 1]
    precision, accepted, level, mark = (
        threshold_plot(p, right, target=0.8, threshold=0.5).axes[0].lines
    )
    assert precision.get_xdata().tolist() == [0.9, 0.5, 0.2]
    expected = [
        [np.mean([y for q, y in zip(p, right, strict=True) if q >= t]) for t in (0.9, 0.5, 0.2)]
    ]
    expected += [[np.mean([q >= t for q in p]) for t in (0.9, 0.5, 0.2)]]
    for line, values in zip((precision, accepted), expected, strict=True):
        np.testing.assert_allclose(line.get_ydata(), values)
    assert level.get_ydata()[0] == 0.8
    assert mark.get_xdata()[0] == 0.5


def test_who_is_abstained_from_is_on_no_curve_but_counts():
    p, right, out = [0.9, 0.5, 0.4, 0.2], [1, 0, 1, 1], [0, 1, 0, 0]
    precision, accepted = threshold_plot(p, right, abstained=out).axes[0].lines
    assert precision.get_xdata().tolist() == [0.9, 0.4, 0.2]
    assert precision.get_ydata().tolist() == [1, 1, 1]
    assert accepted.get_ydata().tolist() == [0.25, 0.5, 0.75]
    with pytest.raises(InputError, match="abstained"):
        threshold_plot(p, right, abstained=out[:2])


@pytest.mark.parametrize("of", ["match", "label"])
def test_figures_in_one_line(of, index):
    figure = index.plot_threshold(0.6, of=of)
    promised = index.calibration.threshold_for(precision=0.6, of=of).value
    assert figure.axes[0].lines[3].get_xdata()[0] == promised
    assert len(index.plot_threshold(0.9999, of=of).axes[0].lines) == 3  # nothing promises that
    reliability = index.plot_reliability(of=of).axes[0]
    probability, right = index.calibration.held_out(of)
    points = reliability.collections[0].get_offsets()
    assert 1 <= len(points) <= 10
    assert points[:, 0].min() >= float(probability.min()) - 1e-9
    assert right.dtype == bool
    assert right.shape == probability.shape
