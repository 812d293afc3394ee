"""Unknown queries are not answered: by held-out queries as by those to come."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration import guarantee
from laplace_metric.calibration._calibration_file import calibration_of, calibration_part
from laplace_metric.calibration._conformal import least_common_p_values, own_p_values
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.calibration.probability._features import (
    PairFeatures,
    query_statistics,
    statistic_weights,
)
from laplace_metric.errors import FileFormatError, InputError
from tests.calibration.arrays import largest_guarantee, queries_needed
from tests.calibration.conftest import calibrated

CLASSES, KNOWN, RUNS, TAUGHT, QUERIES = 20, 15, 100, 300, 3_000


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**32))
def test_a_known_query_is_judged_by_all_others(n, size, values, seed):
    """Ties among few values, too."""
    known = np.random.default_rng(seed).integers(0, values, (n, size)) * 1.0
    rest = [np.delete(known, i, 0) for i in range(n)]
    alone = [least_common_p_values(rest[i], known[i : i + 1]) for i in range(n)]
    np.testing.assert_allclose(own_p_values(known), np.concatenate(alone), rtol=0, atol=1e-15)


@pytest.fixture(scope="module")
def labelled() -> LabelledHits:
    """Queries of 20 Gaussian classes, three quarters of which the index has."""
    g = torch.Generator().manual_seed(5)
    centres = torch.randn(CLASSES, 6, generator=g)

    def draw(n: int, classes: int):
        y = torch.randint(0, classes, (n,), generator=g)
        return centres[y] + 0.45 * torch.randn(n, 6, generator=g), y

    embedder = LaplaceEmbedder.from_embeddings(
        *draw(300, KNOWN), prior_precision=20.0, distance="arccos"
    )
    index = embedder.index(*draw(150, KNOWN), progress=False)
    return index.labelled_hits(*draw(QUERIES, CLASSES), k=20)


def test_p_values_of_the_second_half_are_those_of_new_queries(labelled, quick):
    some = labelled.take(np.arange(TAUGHT))
    fitted = calibrated(some, 3, 150, torch.Generator().manual_seed(0))
    order = torch.randperm(TAUGHT, generator=torch.Generator().manual_seed(0)).numpy()
    second = some.take(order[TAUGHT // 2 :])
    statistics = query_statistics(second.hits)
    weights = statistic_weights(fitted.epistemic_weight)
    for i in (0, 7, 31, 80, 149):
        others = fitted.statistics
        if bool(second.known[i]):
            same = (others == statistics[i]).all(1).nonzero()[0][0]
            others = np.delete(others, same, 0)
        (p,) = least_common_p_values(others, statistics[i : i + 1], weights)
        assert float(fitted.p_value[i]) == pytest.approx(p, abs=1e-15)
    assert 0 < int(fitted.queries("match", 0.1).abstained.sum()) < 75
    assert not bool(fitted.queries("match", None).abstained.any())


@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_precision_is_promised_of_what_is_answered(alpha, labelled, quick):
    """The share of calibrations whose promise breaks, on queries that none has seen."""
    broken, made = 0, 0
    for seed in range(RUNS):
        g = torch.Generator().manual_seed(seed)
        order = torch.randperm(QUERIES, generator=g).numpy()
        fitted = calibrated(labelled.take(order[:TAUGHT]), 3, 150, g)
        try:
            threshold = fitted.guarantee(precision=0.75, confidence=0.9, of="match", alpha=alpha)
        except InputError:
            continue
        left = labelled.take(order[TAUGHT:])
        judged = fitted.assess(left.hits)
        answered = (judged.match_probability[:, 0] >= threshold.value) & (judged.p_value > alpha)
        made += 1
        broken += float(left.match[answered, 0].mean()) < 0.75
    assert made > RUNS / 2
    assert broken / made <= 0.1 + 3 * (0.1 * 0.9 / made) ** 0.5


def drawn(n: int, seed: int):
    g = np.random.default_rng(seed)
    p = g.uniform(size=n).round(2)  # with ties
    return p, g.uniform(size=n) < 0.4 + 0.6 * p, g.uniform(size=n) < 0.3


@pytest.mark.parametrize("seed", range(8))
def test_who_is_abstained_from_is_accepted_by_no_threshold(seed):
    p, right, out = drawn(400, seed)
    found, alone = (
        guarantee(p, right, precision=0.8, abstained=out),
        guarantee(p[~out], right[~out], precision=0.8),
    )
    assert found == replace(alone, n_tested=400, coverage=((p >= found.value) & ~out).mean())
    most, alone = (
        largest_guarantee(p, right, abstained=out),
        largest_guarantee(p[~out], right[~out]),
    )
    assert (most.value, most.target, most.bound) == (alone.value, alone.target, alone.bound)
    assert guarantee(p, right, precision=0.8, abstained=out * 0) == guarantee(
        p, right, precision=0.8
    )


@pytest.mark.parametrize("seed", range(8))
def test_recall_counts_those_that_are_abstained_from(seed):
    p, right, out = drawn(400, seed)
    found = guarantee(p, right, recall=0.5, abstained=out)
    accepted = (p >= found.value) & ~out
    assert found.estimate == pytest.approx(accepted[right].mean())
    higher = p[p > found.value].min()
    kept = ((p >= higher) & ~out)[right]
    from scipy.stats import binom

    assert binom.sf(accepted[right].sum() - 1, right.sum(), 0.5) <= 0.05
    assert binom.sf(kept.sum() - 1, right.sum(), 0.5) > 0.05
    with pytest.raises(InputError, match=f"{int((out & right).sum())} of the right") as error:
        guarantee(p, right, recall=0.9, abstained=out)
    assert "alpha=None" in str(error.value)
    assert "more queries" not in str(error.value)


def test_nobody_is_answered():
    p, right, _ = drawn(50, 0)
    everybody = np.ones(50, dtype=bool)
    for promise in ({"precision": 0.5}, {"recall": 0.5}):
        with pytest.raises(InputError, match=r"queries support 0 \("):
            guarantee(p, right, abstained=everybody, **promise)
    with pytest.raises(InputError, match="of 50 queries.*0 are.*right"):
        largest_guarantee(p, right, abstained=everybody)
    missing = queries_needed(p, right, precision=0.9, abstained=everybody)
    assert (missing.more_queries, missing.surest, missing.right) == (None, 0, 0)
    with pytest.raises(InputError, match="abstained"):
        guarantee(p, right, precision=0.5, abstained=everybody[:9])
    with pytest.raises(InputError, match="abstained.*values between"):
        guarantee(p, right, precision=0.5, abstained=p)


def test_more_queries_count_those_that_are_abstained_from():
    """Of twice as many, half abstained from, the answers are the same."""
    p, right, _ = drawn(60, 1)
    out = np.r_[np.zeros(60), np.ones(60)] == 1
    alone = queries_needed(p, right, precision=0.8)
    both = queries_needed(np.r_[p, p], np.r_[right, right], precision=0.8, abstained=out)
    assert alone.more_queries is not None
    # shares are rounded up
    assert both.more_queries == pytest.approx(2 * alone.more_queries, abs=2 * 12)
    assert (both.surest, both.right) == (alone.surest, alone.right)


def test_a_calibration_passes_it_on(labelled, quick):
    fitted = calibrated(labelled.take(np.arange(2000)), 3, 150, torch.Generator())
    p, right = fitted.probability[:, 0], fitted.match[:, 0]
    out = fitted.queries("match", 0.2).abstained
    np.testing.assert_array_equal(out, fitted.p_value <= 0.2)
    ours = fitted.guarantee(precision=0.7, alpha=0.2, of="match")
    order = torch.randperm(2000, generator=torch.Generator()).numpy()
    first = labelled.take(order[:1000])  # the half that fits sets the thresholds
    nearest = fitted.matcher(fitted.matcher.logit(PairFeatures.of(first.hits)))[:, 0]
    np.testing.assert_allclose(fitted.grid[:, 0], nearest)
    by_label = fitted.assess(first.hits).label_probability
    np.testing.assert_allclose(fitted.grid[:, 1], by_label)
    given = {"abstained": out, "thresholds": fitted.grid[:, 0]}
    wanted = guarantee(p, right, precision=0.7, **given)
    assert ours == replace(
        wanted, guarantee=replace(wanted.guarantee, alpha=0.2), calibration=fitted.identity
    )
    label = fitted.guarantee(precision=0.6, of="label", alpha=None)
    assert label.value in [*fitted.grid[:, 1].tolist(), *fitted.label_probability.tolist()]
    assert re.search(r"at least 0\.\d+ and the query is not unfamiliar at alpha=0.2\n", str(ours))
    most = fitted.largest_guarantee(of="match", alpha=0.2)
    most_of_all = largest_guarantee(p, right, **given)
    assert most == replace(
        most_of_all,
        guarantee=replace(most_of_all.guarantee, alpha=0.2),
        calibration=fitted.identity,
    )
    missing = fitted.queries_needed(0.95, of="match", alpha=0.2)
    alone = queries_needed(p, right, precision=0.95, **given)
    assert missing == alone.times(2)
    assert fitted.guarantee(recall=0.5).alpha == fitted.largest_guarantee().alpha == 0.05
    assert fitted.guarantee(recall=0.5).of == fitted.largest_guarantee().of == "label"
    with pytest.raises(InputError, match="alpha"):
        fitted.guarantee(precision=0.7, alpha=2)


def test_a_file_without_p_values_is_damaged(labelled, quick):
    fitted = calibrated(labelled.take(np.arange(400)), 3, 150, torch.Generator())
    part = calibration_part(fitted)
    again = calibration_of(part.content, part.arrays)
    assert np.array_equal(again.p_value, fitted.p_value)
    assert again.guarantee(precision=0.7) == fitted.guarantee(precision=0.7)
    for name in ("p_value", "grid"):
        less = {key: x for key, x in part.arrays.items() if key != name}
        with pytest.raises(FileFormatError, match=f"{name} is missing"):
            calibration_of(part.content, less)


def test_without_a_right_answer_nobody_is_told_to_abstain_from_fewer():
    p, none = np.linspace(0.1, 0.9, 40), np.zeros(40, bool)
    with pytest.raises(InputError, match="of 0 right ones") as error:
        guarantee(p, none, recall=0.5)
    assert "alpha" not in str(error.value)
    assert "calibrate on more queries (5 right ones are the least)" in str(error.value)
    with pytest.raises(InputError, match="abstain from fewer.*smaller alpha"):
        guarantee(p, ~none, recall=0.5, abstained=~none)


@pytest.mark.parametrize("rate", ["fmr", "fpir"])
def test_queries_that_all_test_are_no_half(rate):
    p, right = np.linspace(0.1, 0.9, 40), np.arange(40) % 2 == 0
    with pytest.raises(InputError, match="there are 20.*Calibrate on more") as error:
        guarantee(p, right, **{rate: 0.01})
    assert "half" not in str(error.value)
