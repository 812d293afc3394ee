"""The front page's table: the three numbers against the best of all others."""

from __future__ import annotations

import pytest
from scipy.stats import ttest_rel

from benchmarks.report import three_numbers as numbers
from benchmarks.report.three_numbers import EPISTEMIC, MATCH, Case, Values

VALUES = {
    MATCH: (0.90, 0.92, 0.91),
    EPISTEMIC: (0.70, 0.71, 0.72),
    "laplace, near": (0.62, 0.62, 0.62),
    "laplace, far": (0.60, 0.60, 0.60),
    "laplace": (0.80, 0.85, 0.81),
    "nuq": (0.86, 0.87, 0.88),
    "nuq, on infonce": (0.99, 0.99, 0.99),
    "elk": (0.99,),
}


def rows(_case):
    """R-AUROC as above; the OOD sets a little less and a little more than it."""
    return [
        {
            "method": method,
            "seed": seed,
            "metrics": {
                "r_auroc": {"value": x},
                "auroc a": {"value": x - 0.02},
                "auroc b": {"value": x + 0.02},
            },
        }
        for method, of in VALUES.items()
        for seed, x in enumerate(of)
    ]


@pytest.fixture(autouse=True)
def one_case(monkeypatch):
    monkeypatch.setattr(numbers, "CASES", (Case("lam", "task", "a task", True),))
    monkeypatch.setattr(numbers, "rows_of", rows)


def test_the_best_other_is_on_the_same_network_and_has_every_seed():
    of = numbers.values(rows(None), ["r_auroc"])
    assert "elk" not in of
    assert numbers.best_other(of).method == "nuq"
    assert of["nuq, on infonce"].mean > of["nuq"].mean  # and is not asked
    both = numbers.values(rows(None), numbers.ood_metrics(rows(None)))
    assert both["nuq"].mean == pytest.approx(0.87)  # of both OOD sets


def test_bold_is_what_a_paired_t_test_calls_significant():
    a, b = (Values(n, dict(enumerate(VALUES[n]))) for n in (MATCH, "nuq"))
    assert numbers.significant(a, b) == (ttest_rel(VALUES[MATCH], VALUES["nuq"]).pvalue < 0.05)
    cells = numbers.pair(a, b)
    assert cells == ["**.910 ± .006**", ".870 ± .006 (nuq)"]
    near = Values("near", {0: 0.93, 1: 0.89, 2: 0.91})
    assert not numbers.significant(a, near)
    assert "**" not in "".join(numbers.pair(a, near))
    assert numbers.pair(b, a)[1] == "**.910 ± .006** (laplace, match)"
    assert Values("x", {0: 0.1, 1: 0.3}).text == ".200 ± .100"


def test_tables_hold_every_case():
    assert "| a task | yes | **.910" in numbers.front()
    pairs = numbers.pairs()
    line = "| a task: a | yes | .690 ± .006 | .600 | .580 | -0.160 | -0.270 | .800 |"
    assert line in pairs
    assert "| a task: b |" in pairs
    assert numbers.pairs(numbers.INFONCE).count("\n") == 1  # nothing of ours on that network
    assert "| a task | yes | .910 ± .006 | n/a | .820 |" in numbers.errors()
