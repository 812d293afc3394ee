"""What a page opens with, against counting: no number of it may be another than the data's."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from laplace_metric.cli._examples import SHOWN, grouped
from laplace_metric.cli._headline import headline
from laplace_metric.cli._share import Share, percent
from laplace_metric.search import IndexReport
from laplace_metric.search._report import GuaranteedPrecision, OODReport

NOT_YET = GuaranteedPrecision(0.95, None, "cannot be guaranteed: calibrate on 280 more queries.")
TOO_FEW = GuaranteedPrecision(0.99, None, "cannot be guaranteed: 528 would be the least.")


def draw(n: int, seed: int, accuracy: float = 0.9):
    """Match probabilities [n] with ties, which are right, called unknown, and have a match."""
    g = torch.Generator().manual_seed(seed)
    p = (torch.rand(n, generator=g, dtype=torch.float64) * 20).round() / 20
    right = torch.rand(n, generator=g) < accuracy
    return p, right, torch.rand(n, generator=g) < 0.2, right | (torch.rand(n, generator=g) < 0.5)


def promise_at(target: float, value: float, p, right) -> GuaranteedPrecision:
    accepted = p >= value
    obtained = float(right[accepted].double().mean()) if bool(accepted.any()) else None
    return GuaranteedPrecision(target, value, "", obtained, float(accepted.double().mean()))


def evaluation(p, right, unknown, has_match, *promises: GuaranteedPrecision) -> IndexReport:
    n, share = len(p), float(right.double().mean())
    return IndexReport(
        queries=n,
        known_share=float(has_match.double().mean()),
        answers_right=share,
        recall_at_1=share,
        r_auroc={},
        ausc={},
        ausc_oracle=1.0,
        sparsification={},
        right=right,
        guarantees=promises,
        probability=p,
        scores={"match probability": 1 - p},
        called_unknown=unknown,
        has_match=has_match,
    )


def numbers(text: str) -> list[float]:
    return [float(x.replace(",", "")) for x in re.findall(r"\d[\d,]*\.?\d*", text)]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 400), seed=st.integers(0, 999), value=st.sampled_from((0.3, 0.6, 0.9)))
def test_the_title_says_what_was_counted(n, seed, value):
    p, right, *rest = draw(n, seed, 0.97)
    measures = evaluation(p, right, *rest, promise_at(0.9, value, p, right))
    accepted = (p >= value).numpy()
    k, good = int(accepted.sum()), int(right.numpy()[accepted].sum())
    found = headline(measures)
    if k == 0:
        assert found["title"] == f"Answers none of {n:,} queries (90\u00a0% precision guaranteed)."
        return
    obtained, promised = numbers(found["title"])[-2:]
    assert obtained == pytest.approx(100 * good / k, abs=0.5)
    assert promised == 90
    if binomtest(good, k, 0.9, "less").pvalue <= 0.05:
        assert found["tone"] == "contradicted"
        assert found["title"].startswith("Do not rely on it: ")
        assert found["title"].endswith("90\u00a0% was guaranteed: these queries contradict it.")
    else:
        sure = binomtest(good, k, 0.9, "greater").pvalue <= 0.05
        assert found["tone"] == ("confirmed" if sure else "open")
        assert found["title"].startswith("Answers ")
        assert found["title"].endswith("confirm it." if sure else "are too few to tell.")
        answered = numbers(found["title"])[0]
        assert answered == pytest.approx(100 * k / n, abs=0.5)
        assert (answered in (0, 100)) == (k in (0, n))
    assert numbers(found["lines"][0])[:3] == [n, k, good]
    assert f"{k:,} answers " in found["lines"][1]


def of_100(right: int, target: float) -> IndexReport:
    """100 queries that are all answered, so many of them rightly."""
    p, rightly = torch.linspace(0, 1, 100, dtype=torch.float64), torch.arange(100) < right
    rest = torch.zeros(100, dtype=torch.bool), torch.ones(100, dtype=torch.bool)
    return evaluation(p, rightly, *rest, promise_at(target, 0.0, p, rightly))


def test_a_promise_is_tested_on_its_own_side():
    ends = binomtest(70, 100).proportion_ci(0.9, method="exact")  # 5 % on each side
    assert 0.61 < ends.low < 0.62
    assert 0.77 < ends.high < 0.78
    outcomes = {0.9: "contradicted", 0.78: "contradicted", 0.77: "open", 0.62: "open"}
    outcomes |= {0.61: "confirmed", 0.55: "confirmed"}
    assert {t: headline(of_100(70, t))["tone"] for t in outcomes} == outcomes


def test_what_the_queries_tell_follows_what_was_obtained():
    told = headline(of_100(86, 0.9))
    assert told["title"] == (
        "Answers 100\u00a0% of queries; 86\u00a0% of the answers are right. "
        "90\u00a0% was guaranteed: these queries are too few to tell."
    )
    assert told["lines"][1] == (
        "100 answers neither confirm nor contradict a precision of at least 90\u00a0% "
        "(one-sided exact test, P = 0.12)."
    )
    told = headline(of_100(97, 0.9))
    assert told["title"].endswith("97\u00a0% of the answers are right. 90\u00a0% was guaranteed: "
                                  "these queries confirm it.")  # fmt: skip
    told = headline(of_100(70, 0.9))
    assert told["title"] == (
        "Do not rely on it: 70\u00a0% of the answers are right. 90\u00a0% was guaranteed: "
        "these queries contradict it."
    )
    assert told["lines"][1].endswith("(one-sided exact test, P < 0.001).")


@pytest.mark.parametrize(("n", "target", "least"), [(28, 0.9, 29), (29, 0.9, 0), (58, 0.95, 59)])
def test_fewer_answers_than_could_confirm_are_told(n, target, least):
    p, right = torch.ones(n, dtype=torch.float64), torch.ones(n, dtype=torch.bool)
    told = headline(evaluation(p, right, ~right, right, promise_at(target, 0.5, p, right)))
    assert told["tone"] == ("open" if least else "confirmed")
    assert (f"{least} that are all right would confirm it" in told["lines"][1]) is bool(least)


def test_what_is_missing_is_what_the_calibration_says():
    p, right, *rest = draw(200, 1, 0.98)
    first = promise_at(0.9, 0.5, p, right)
    for missing in ([NOT_YET], [NOT_YET, TOO_FEW]):
        lines = headline(evaluation(p, right, *rest, first, *missing))["lines"]
        assert lines[-1] == f"95\u00a0% precision {NOT_YET.explanation}"
    second = promise_at(0.95, 0.8, p, right)
    lines = headline(evaluation(p, right, *rest, first, second))["lines"]
    accepted = p >= 0.8
    share, good = (float(x.double().mean()) for x in (accepted, right[accepted]))
    assert lines[-1] == (
        f"With 95\u00a0% guaranteed it answers {percent(share)}, and {percent(good)} of these "
        f"{int(accepted.sum())} answers are right."
    )


def test_without_a_usual_promise_the_largest_is_told():
    p, right, *rest = draw(300, 2, 0.95)
    none = GuaranteedPrecision(0.9, None, "cannot be guaranteed.")
    measures = evaluation(p, right, *rest, none)
    measures = replace(measures, largest_guarantee=promise_at(0.83, 0.5, p, right))
    found = headline(measures)
    accepted = p >= 0.5
    shares = [round(100 * float(x.double().mean())) for x in (accepted, right[accepted])]
    assert numbers(found["title"]) == [*shares, 83]
    assert found["made"] is measures.largest_guarantee
    little = replace(measures, largest_guarantee=promise_at(0.4, 0.5, p, right))
    assert headline(little)["tone"] == "none"
    assert "nothing can be guaranteed" in headline(little)["title"]
    assert numbers(headline(little)["title"]) == [round(100 * float(right.double().mean()))]


def test_without_a_calibration_there_is_no_promise():
    p, right, *_ = draw(150, 3, 0.62)
    measures = evaluation(p, right, right, right)
    found = headline(replace(measures, probability=None, called_unknown=None))
    assert numbers(found["title"]) == [round(100 * float(right.double().mean()))]
    assert "--calibrate" in found["lines"][1]
    assert found["tone"] == "none"


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 200), seed=st.integers(0, 999), value=st.sampled_from((0.3, 0.6, None)))
def test_every_query_is_in_one_group_and_shown_in_its_own(n, seed, value):
    p, right, unknown, has_match = draw(n, seed, 0.7)
    answered = ~unknown if value is None else ~unknown & (p >= value)
    made = None if value is None else GuaranteedPrecision(0.9, value, "", accepted=answered)
    groups = {g["key"]: g for g in grouped(evaluation(p, right, unknown, has_match), made)}
    members = {
        "right": answered & right,
        "wrong": answered & ~right,
        "abstained": ~answered & ~unknown,
        "unknown": unknown,
    }
    assert {key: g["n"] for key, g in groups.items()} == {
        key: int(rows.sum()) for key, rows in members.items() if bool(rows.any())
    }
    for key, group in groups.items():
        own = members[key].nonzero().flatten().tolist()
        assert set(group["places"]) <= set(own)
        assert len(group["places"]) == min(SHOWN, len(own)) == len(set(group["places"]))
        shown = [float(p[row]) for row in group["places"]]
        assert shown == sorted(shown, reverse=True)
        assert shown[0] == max(float(p[row]) for row in own)
        assert shown[-1] == min(float(p[row]) for row in own)
    if "abstained" in groups:
        assert numbers(groups["abstained"]["note"]) == [int(right[members["abstained"]].sum())]
    if "unknown" in groups:
        strange = int((~has_match[members["unknown"]]).sum())
        assert numbers(groups["unknown"]["note"]) == ([strange] if strange else [])


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 5_000), share=st.floats(0, 1))
def test_shares_are_written_so_that_they_hold(n, share):
    k = round(share * n)
    written = Share(k, n)
    exact = binomtest(k, n).proportion_ci(0.95, method="exact")
    low, high = numbers(written.interval)
    assert low - 1e-6 <= 100 * exact.low < low + 1.001
    assert high - 1.001 < 100 * exact.high <= high + 1e-6
    assert (written.percent == "100\u00a0%") == (k == n)
    assert (written.percent == "0\u00a0%") == (k == 0)
    assert numbers(written.percent)[0] == pytest.approx(100 * k / n, abs=0.5)


def test_a_share_that_is_not_known_has_no_percent():
    assert Share.of(None, 10).percent == "n/a"


def test_strangers_that_are_let_in_are_counted():
    p, right, unknown, _ = draw(200, 3, 0.98)
    has_match = torch.arange(200) >= 20
    made = replace(promise_at(0.9, 0.2, p, right), without_match=0.25, ood=0.1)
    measures = evaluation(p, right, unknown, has_match, made)
    measures = replace(measures, known_share=0.9)
    told = " ".join(headline(measures)["lines"])
    assert "It lets in 5 of 20 queries without a match in the index (25\u00a0%)." in told
    both = replace(measures, ood=OODReport(40, {}, 0.5))
    told = " ".join(headline(both)["lines"])
    assert "match in the index (25\u00a0%) and 4 of 40 open-set queries (10\u00a0%)." in told
    nobody = replace(measures, known_share=1.0)
    assert "lets in" not in " ".join(headline(nobody)["lines"])


def with_open_set(answered_rightly: int, let_in: float, covered: float = 0.0) -> IndexReport:
    """100 queries that are all answered, so many rightly, and 50 open-set queries."""
    p, right = torch.ones(100, dtype=torch.float64), torch.arange(100) < answered_rightly
    rest = torch.zeros(100, dtype=torch.bool), torch.ones(100, dtype=torch.bool)
    made = replace(promise_at(0.9, 0.5, p, right), ood=let_in)
    report = evaluation(p, right, *rest, made)
    return replace(report, ood=OODReport(50, {}, 0.5), calibrated_without_match=covered)


def test_the_title_tells_what_was_measured_with_open_set_queries_and_without():
    found = headline(with_open_set(95, 0.12))  # 95 of 106 answers are right
    assert found["tone"] == "open"
    assert numbers(found["title"]) == [100, 95, 90, 90]
    assert "of the answers are right, 90\u00a0% with the open-set queries" in found["title"]
    assert "106 answers, those to open-set queries among them, neither" in found["lines"][1]
    assert "It lets in 6 of 50 open-set queries (12\u00a0%)." in found["lines"]
    none = headline(with_open_set(95, 0.0))
    assert "are right, 95\u00a0% with the open-set queries" in none["title"]
    assert "100 answers neither" in none["lines"][1]


@pytest.mark.parametrize("answered_rightly", [98, 60])
def test_open_set_queries_that_are_let_in_break_a_guarantee(answered_rightly):
    measures = with_open_set(answered_rightly, 0.8)  # 40 more answers, all of them wrong
    found = headline(measures)
    assert found["tone"] == "contradicted"
    share = round(100 * answered_rightly / 140)
    assert numbers(found["title"]) == [answered_rightly, share, 90]
    by_whom = {
        98: "with the open-set queries it does not hold.",
        60: "these queries contradict it.",
    }
    assert found["title"].endswith(by_whom[answered_rightly])
    assert "It lets in 40 of 50 open-set queries (80\u00a0%)." in found["lines"]


@pytest.mark.parametrize(
    ("covered", "told"), [(0.0, "that have a match"), (0.2, "of which 20\u00a0%")]
)
def test_the_page_says_which_queries_the_guarantee_covers(covered, told):
    lines = " ".join(headline(with_open_set(95, 0.1, covered))["lines"])
    assert f"The guarantee covers queries {told}" in lines
    assert "33\u00a0% have none" in lines or "of these 33\u00a0% have none" in lines
    p, right, unknown, _ = draw(100, 0, 0.99)
    known = evaluation(p, right, unknown, unknown | True, promise_at(0.9, 0.5, p, right))
    without = replace(known, known_share=1.0, calibrated_without_match=covered)
    assert "covers" not in " ".join(headline(without)["lines"])


@pytest.mark.parametrize("cross_fitted", [True, False, None])
def test_a_simulated_guarantee_is_told_and_not_by_whom_it_was_calibrated(cross_fitted):
    p, right, unknown, has_match = draw(400, 0, accuracy=0.99)
    report = evaluation(p, right, unknown, has_match, promise_at(0.9, 0.5, p, right))
    told = " ".join(headline(replace(report, cross_fitted=cross_fitted))["lines"])
    assert ("by simulation, not by a theorem" in told) is (cross_fitted is True)
    assert "by the queries of this page" not in told
    assert "own items" not in told


def test_words_of_the_library_reach_the_terminal_as_they_are():
    p, right, *rest = draw(200, 1, 0.98)
    none = GuaranteedPrecision(0.95, None, "cannot be guaranteed: it's 'a' < 'b' & more.")
    told = headline(evaluation(p, right, *rest, promise_at(0.9, 0.5, p, right), none))
    assert told["lines"][-1] == f"95\u00a0% precision {none.explanation}"
