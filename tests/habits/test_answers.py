"""Labels or None, tables, and figures in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplace_metric.calibration import Rule, calibrate_scores
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.plots import threshold_plot


def test_a_label_where_the_index_is_sure_and_none_elsewhere(index, points, names):
    x = points[0][300:]
    found, result = index.ask(x, probability=0.9), index.search(x, k=1)
    assert np.array_equal(found.reason == "unfamiliar", result.unknown)
    assert bool(result.unknown.any())
    for label, probability, expected, p, unknown in zip(
        found.label, found.probability, result.label, result.label_probability,
        result.unknown, strict=True,
    ):  # fmt: skip
        assert probability == p
        assert label == (expected if p >= 0.9 and not unknown else None)
    assert 10 < int(found.answered.sum()) < 90
    assert found[0] == (found.label[0], float(found.probability[0]), found.reason[0])


def test_a_rule_answers_as_its_threshold_does(index, points):
    rule, x = index.guarantee(precision=0.6), points[0][300:]
    assert (rule.of, rule.quantity, rule.target) == ("label", "precision", 0.6)
    for found in (rule(index.search(x)), index.ask(x, rule)):
        assert np.array_equal(found.label, index.ask(x, probability=rule.value).label)
    with pytest.raises(InputError, match="precision"):
        index.guarantee(precision=0.99999)


@pytest.mark.parametrize("of", ["match", "label"])
@pytest.mark.parametrize("alpha", [0.05, 0.2, None])
def test_every_door_compares_a_threshold_with_the_probability_it_was_chosen_for(
    of, alpha, index, points
):
    x, threshold = points[0][300:], index.calibration.guarantee(recall=0.5, of=of, alpha=alpha)
    result = index.search(x, k=20)
    p = {"match": result.match_probability[:, 0], "label": result.label_probability}
    known = torch.ones(len(x), dtype=torch.bool) if alpha is None else result.p_value > alpha
    expected, other = ((p[name] >= threshold.value) & known for name in (of, OTHER[of]))
    assert not torch.equal(expected, other)  # or the test could not fail
    found = index.ask(x, threshold)
    assert found.answered.dtype == bool
    for answered in (found.answered, threshold(result).answered):
        assert np.array_equal(answered, expected)
    told = result.label if of == "label" else result.labels[:, 0]
    assert np.array_equal(found.label, np.where(expected, told.astype(object), None))
    assert np.array_equal(found.probability, p[of])
    assert np.array_equal(found.reason == "", expected)
    assert np.array_equal(found.reason == "unfamiliar", ~known)
    some = found[expected.numpy()]
    assert some.answered.all()
    assert len(some) == int(expected.sum())


OTHER = {"match": "label", "label": "match"}


def test_a_number_is_compared_with_the_probability_that_is_named(index, points):
    x = points[0][300:]
    result = index.search(x, k=20)
    known, near = result.p_value > 0.05, result.match_probability[:, 0]
    assert np.array_equal(
        index.ask(x, probability=0.7).answered, (result.label_probability >= 0.7) & known
    )
    assert np.array_equal(Rule.at(0.7, "match")(result).answered, (near >= 0.7) & known)
    by_label = Rule.at(0.7)(result).answered
    assert np.array_equal(by_label, (result.label_probability >= 0.7) & known)
    assert index.ask(x, probability=0).answered.sum() == int(known.sum())


@pytest.mark.parametrize("threshold", [90, -0.1, float("nan"), True, "0.9", [0.9]])
def test_no_door_takes_a_threshold_that_is_no_probability(threshold, index, points):
    for compare in (lambda t: index.ask(points[0][300:310], probability=t), Rule.at):
        with pytest.raises(InputError, match="rule|probability"):
            compare(threshold)


def test_a_number_without_a_name_is_neither_a_probability_nor_a_precision(index, points):
    x = points[0][300:310]
    for wrong in (0.9, 1, "0.9", [0.9]):
        with pytest.raises(InputError, match="is no rule.*guarantee.*precision.*probability=0.5"):
            index.ask(x, wrong)
    with pytest.raises(TypeError, match="is no rule"):
        index.ask(x, 0.9)
    with pytest.raises(InputError, match="probability=0.5.*rule.*one of them"):
        index.ask(x, index.guarantee(recall=0.5), probability=0.5)
    assert index.ask(x).label.tolist() == index.ask(x, probability=0.5).label.tolist()
    for made in (index, index.calibration):
        with pytest.raises(TypeError, match="argument.*as precision=0.9"):
            made.guarantee(0.9)


def test_a_rule_refuses_what_it_was_not_made_of(index, points, embedder):
    found, scores = index.search(points[0][300:310]), np.linspace(0, 1, 40)
    with pytest.raises(InputError, match="found is a ndarray.*of an index"):
        index.guarantee(recall=0.5)(scores)
    of_scores = calibrate_scores(scores, scores > 0.3).guarantee(recall=0.5)
    with pytest.raises(InputError, match="found is a SearchResult.*of scores"):
        of_scores(found)
    with pytest.raises(InputError, match="with evidence"):
        index.guarantee(recall=0.5)(found, age=scores)
    x, _ = points
    plain = embedder.index(x[100:200], progress=False)
    plain.calibrate(x[200:300], matches=[[i] for i in range(100)])
    with pytest.raises(NotFittedError, match="not calibrated with.*labels"):
        index.guarantee(recall=0.5)(plain.search(x[:3]))


def test_without_labels_there_is_nothing_to_answer(embedder, points):
    x, _ = points
    index = embedder.index(x[100:200], progress=False)
    with pytest.raises(NotFittedError, match="call index.calibrate"):
        index.ask(x[:3])
    index.calibrate(x[200:300], matches=[[i] for i in range(100)])
    assert index.ask(x[:3], Rule.at(0, "match", None)).label.dtype == object
    with pytest.raises(NotFittedError, match="not calibrated with.*labels"):
        index.ask(x[:3], Rule.at(0.5))


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


@pytest.mark.parametrize("precision", ["a", 90, -1, 0.0, 1.0, float("nan")])
def test_a_precision_outside_its_range_is_not_drawn(precision, index):
    with pytest.raises(InputError, match=r"^precision=.*between 0.*1"):
        index.plot_threshold(precision)
    with pytest.raises(InputError, match=r"^target=.*between 0.*1"):
        threshold_plot([0.2, 0.9], [0, 1], target=precision)
    with pytest.raises(InputError, match=r"^threshold='a'.*finite number"):
        threshold_plot([0.2, 0.9], [0, 1], threshold="a")


@pytest.mark.parametrize("of", ["match", "label"])
def test_figures_in_one_line(of, index):
    figure = index.plot_threshold(0.6, of=of)
    promised = index.calibration.guarantee(precision=0.6, of=of).value
    assert figure.axes[0].lines[3].get_xdata()[0] == promised
    assert len(index.plot_threshold(0.9999, of=of).axes[0].lines) == 3  # nothing promises that
    reliability = index.plot_reliability(of=of).axes[0]
    probability, right = index.calibration.queries(of).answers()
    points = reliability.collections[0].get_offsets()
    assert 1 <= len(points) <= 10
    assert points[:, 0].min() >= float(probability.min()) - 1e-9
    assert right.dtype == bool
    assert right.shape == probability.shape


def test_a_search_before_a_calibration_says_what_is_not_there(embedder, points):
    x, y = points
    index = embedder.index(x[100:200], y[100:200], progress=False)
    found = index.search(x[200:203], k=2)
    told = "not calibrated  no match_probability, label, unknown: index.calibrate(queries, labels)"
    assert told in str(found)
    with pytest.raises(NotFittedError, match="calibrated: call index.calibrate"):
        Rule.at(0.5)(found)
    index.calibrate(x[200:300], y[200:300])
    assert "not calibrated" not in str(index.search(x[:3], k=2))
