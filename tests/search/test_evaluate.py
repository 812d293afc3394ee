"""What an evaluation says, against counting query by query and scikit-learn."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, roc_auc_score

from laplace_metric.search._evaluate import guaranteed_rule
from tests.calibration.arrays import queries_needed

LABEL = "label probability"
KNOWN = 9
"""Classes of which the index has items."""


@pytest.fixture(scope="module")
def parts(points):
    """Of the index, to calibrate with, to evaluate with, and out-of-distribution inputs."""
    x, y = points
    rows = (y[:240] < KNOWN).nonzero().flatten()
    ood = 40 + torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    return (x[rows], y[rows]), (x[240:440], y[240:440]), (x[440:], y[440:]), ood


@pytest.fixture(scope="module")
def plain(parts, embedder):
    return embedder.index(*parts[0], progress=False)


@pytest.fixture(scope="module")
def calibrated(parts, embedder):
    index = embedder.index(*parts[0], progress=False)
    index.calibrate(*parts[1], k=6, depth=30)
    return index


@pytest.fixture(scope="module")
def report(calibrated, parts):
    return calibrated.evaluate(*parts[2], parts[3])


def counted(index, x, y):
    """Neighbours of each query, and whether the label that the index answers with is its own."""
    result = index.search(x, k=30)
    return result, result.label == y.numpy()


def test_shares_are_counts(report, calibrated, parts):
    x, y = parts[2]
    result, right = counted(calibrated, x, y)
    nearest = result.labels[:, 0] == y.numpy()
    known = (y < KNOWN).numpy()
    assert report.queries == len(y)
    assert report.known_share == pytest.approx(known.mean())
    assert report.answers_right == pytest.approx(right.mean())
    assert report.recall_at_1 == pytest.approx(nearest[known].mean())
    assert 0 < right.mean() < right[known].mean() < 1
    assert torch.equal(report.right, torch.from_numpy(right))
    assert (nearest != right).any(), "else the two could be mixed up"


def test_wrong_answers_are_ranked_as_scikit_learn_says(report, calibrated, parts):
    result, right = counted(calibrated, *parts[2])
    scores = {
        LABEL: 1 - result.label_probability,
        "uncertainty": result.uncertainty,
        "distance alone": result.distance[:, 0],
        "epistemic": result.epistemic,
        "ambiguity": result.ambiguity,
    }
    assert list(report.r_auroc) == list(scores) == list(report.ausc)
    for name, score in scores.items():
        assert report.r_auroc[name] == pytest.approx(roc_auc_score(~right, score))
        order = np.argsort(score.numpy(), kind="stable")
        left = [right[order][: -(-len(right) * (100 - i) // 100)].mean() for i in range(100)]
        if len(score.unique()) < len(score):  # ties are averaged
            continue
        np.testing.assert_allclose(report.sparsification[name].curve, left)
        area = float(torch.trapezoid(torch.tensor(left))) / 99
        assert report.ausc[name] == pytest.approx(area)
        assert report.ausc[name] <= report.ausc_oracle


def test_the_probability_is_as_honest_as_its_bins(report, calibrated, parts):
    result, right = counted(calibrated, *parts[2])
    p = result.label_probability.numpy()
    assert report.mean_probability == pytest.approx(p.mean())
    assert report.brier == pytest.approx(brier_score_loss(right, p))
    bins = np.minimum((p * 10).astype(int), 9)
    gaps = [
        abs(p[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean()
        for b in np.unique(bins)
    ]
    assert report.ece == pytest.approx(sum(gaps))
    assert report.reliability.ece == report.ece


def test_guarantees_are_what_their_thresholds_give(calibrated, parts):
    x, y = parts[2]
    calibration = calibrated.calibration
    report = calibrated.evaluate(x, y)
    result = calibrated.search(x, k=1)
    assert [guarantee.guaranteed for guarantee in report.guarantees] == [0.9, 0.95, 0.99]
    for guarantee in report.guarantees:
        threshold, text = guaranteed_rule(calibration, guarantee.guaranteed, "label")
        assert guarantee.explanation == text
        if threshold is None:
            assert "cannot be guaranteed" in text
            assert (guarantee.threshold, guarantee.obtained, guarantee.answered) == (None,) * 3
            continue
        sure = result.label_probability >= threshold.value
        accepted = (sure & (result.p_value > 0.05)).numpy()
        assert guarantee.threshold == threshold.value
        assert guarantee.answered == pytest.approx(accepted.mean())
        assert guarantee.obtained == pytest.approx(report.right.numpy()[accepted].mean())


def test_open_set_queries_that_are_answered_are_counted(report, calibrated, parts):
    x, y = parts[2]
    most, foreign = report.largest_guarantee, calibrated.search(parts[3], k=1)
    threshold = calibrated.calibration.largest_guarantee(of="label")
    accepted = threshold(calibrated.search(x, k=1)).answered
    assert most.without_match == pytest.approx(float(accepted[(y >= KNOWN).numpy()].mean()))
    assert most.ood == pytest.approx(float(threshold(foreign).answered.mean()))
    assert 0 < most.without_match < most.answered
    told = f"({most.without_match:.1%} of those without a match, {most.ood:.1%} of those OOD)"
    assert told in str(report)


def test_sets_and_unknown_are_those_of_the_index(report, calibrated, parts):
    x, y = parts[2]
    sets = calibrated.retrieval_sets(x, alpha=0.1)
    known = y < KNOWN
    held = [label in calibrated.labels[np.isin(calibrated.ids, sets[q])]
            for q, label in enumerate(y.tolist())]  # fmt: skip
    assert report.retrieval_sets.coverage == pytest.approx(np.mean(np.array(held)[known.numpy()]))
    assert report.retrieval_sets.mean_size == pytest.approx(float(sets.sizes.double().mean()))
    unknown = calibrated.search(x, k=6).unknown
    assert report.unknown == {
        "of_known": pytest.approx(float(unknown[known].double().mean())),
        "of_others": pytest.approx(float(unknown[~known].double().mean())),
    }


def test_without_a_calibration_or_ood_inputs_less_is_said(plain, calibrated, report, parts):
    less = plain.evaluate(*parts[2])
    assert list(less.r_auroc) == ["uncertainty", "distance alone", "epistemic", "ambiguity"]
    assert less.decides_about == "match"
    nearest = plain.search(parts[2][0], k=1).labels[:, 0] == parts[2][1].numpy()
    assert less.answers_right == pytest.approx(nearest.mean())
    content, full = less.to_json(), report.to_json()
    extra = {"ece", "brier", "mean_probability", "guarantees", "retrieval_sets", "unknown"}
    extra |= {
        "ood",
        "largest_guarantee",
        "smallest_p_value",
        "calibrated_without_match",
        "cross_fitted",
    }
    assert set(full) - set(content) == extra
    assert json.loads(json.dumps(full)) == full
    assert (less.ood, less.reliability, less.ood_scores) == (None, None, {})
    assert plain.evaluate(*parts[2], parts[3]).ood.unknown is None


def test_the_table_says_what_the_numbers_say(report):
    rows = dict(report.rows())
    assert rows["queries"] == "160"
    assert rows["recall@1 of those"] == f"{report.recall_at_1:.1%}"
    assert rows["predicted label is right, of all queries"] == f"{report.answers_right:.1%}"
    assert rows["label probability: Brier score"] == f"{report.brier:.3f}"
    assert rows["OOD inputs that are unfamiliar"] == f"{report.ood.unknown:.1%}"
    assert all(name in str(report) and value in str(report) for name, value in rows.items())


def test_where_all_answers_are_right_there_is_no_auroc(plain, parts):
    x, y = parts[0]
    report = plain.evaluate(x, y)
    assert report.answers_right == 1
    assert set(report.r_auroc.values()) == {None}
    assert dict(report.rows())["AUROC of wrong answers by uncertainty"] == "n/a"
    others = plain.evaluate(x[:5], y[:5] + 100)
    assert others.recall_at_1 is None
    assert others.to_json()["recall_at_1"] is None


def test_each_query_can_be_looked_up(report, calibrated, parts):
    x, y = parts[2]
    result, _ = counted(calibrated, x, y)
    theirs = calibrated.search(parts[3], k=1)
    assert torch.equal(report.has_match, y < KNOWN)
    assert torch.equal(report.called_unknown, result.unknown)
    torch.testing.assert_close(report.probability, result.label_probability)
    assert torch.equal(report.scores[LABEL], 1 - report.probability)
    torch.testing.assert_close(report.scores["epistemic"], result.epistemic)
    torch.testing.assert_close(report.ood_scores["distance alone"], theirs.distance[:, 0])
    assert "scores" not in report.to_json()


def test_a_guarantee_that_cannot_be_given_says_what_it_lacks(calibrated, parts):
    guarantee = next(p for p in calibrated.evaluate(*parts[2]).guarantees if p.threshold is None)
    tested = calibrated.calibration.queries("label")
    alone = queries_needed(
        tested.probability[:, 0],
        tested.relevant[:, 0],
        precision=guarantee.guaranteed,
        abstained=tested.abstained,
        thresholds=tested.grid if len(tested.grid) else None,
    )
    assert guarantee.queries_needed.right == alone.right
    assert guarantee.queries_needed.more_queries == (
        None if alone.more_queries is None else 2 * alone.more_queries
    )
