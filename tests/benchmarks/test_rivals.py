"""Scores of rivals against loops, their record against the discount's, their page in words."""

from __future__ import annotations

import re

import pytest
import torch
from scipy.stats import ttest_rel

from benchmarks.posterior import discount, rivals
from benchmarks.posterior.rivals import FIRST, INVERTED, UNSEEN, WRONG, Problem, answered, auroc
from benchmarks.records import read_record
from tests.test_readme import BASELINES


def rows():
    return read_record("rivals")["rows"]


def values(method, vectors, key):
    return [r[key] for r in rows() if (r["method"], r["vectors"]) == (method, vectors)]


def mean(method, vectors, key):
    found = values(method, vectors, key)
    return sum(found) / len(found)


def test_auroc_counts_pairs_and_has_none_without_any():
    low, high = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 3.0])
    pairs = [1.0 if h > x else 0.5 if h == x else 0.0 for h in high for x in low]
    assert auroc(low, high) == pytest.approx(sum(pairs) / len(pairs))
    assert auroc(low, torch.ones(0)) is None


def test_the_numbers_of_a_method():
    known = torch.tensor([[0.2], [0.4]])
    queries = torch.tensor([[0.1], [0.9], [0.8]]), torch.tensor([5, 6, 7])
    of = Problem(torch.nn.Identity(), torch.nn.Identity(), queries, queries, queries, known)
    row = answered(of, torch.tensor([5, 6, 5]), torch.tensor([0.1, 0.7, 0.5]), lambda x: x[:, 0])
    assert (row[FIRST], row["wrong"]) == (pytest.approx(2 / 3), 1)
    assert row[WRONG] == 0.5  # above one right query of two
    assert row[UNSEEN] == pytest.approx(4 / 6)
    assert row[INVERTED] == pytest.approx(auroc(known[:, 0], 0.4 - known[:, 0]))
    assert answered(of, queries[1], queries[0][:, 0], None)[WRONG] is None


def test_networks_are_those_of_the_discount():
    """The same searches, by the same networks, have found the same."""
    shares = {r["seed"]: r["first item right"] for r in read_record("discount")["rows"]}
    names = {("cosine", "z"): discount.COSINE, ("cosine", "h"): discount.HEAD_INPUTS,
             ("noise", "h"): discount.RANDOM, ("posterior", "h"): discount.OURS}  # fmt: skip
    compared = 0
    for row in rows():
        if name := names.get((row["method"], row["vectors"])):
            assert row[FIRST] == pytest.approx(shares[row["seed"]][name])
            compared += 1
    assert compared == 12


def test_rivals_in_words():
    for name in (rivals.ASYMVLM, rivals.BOTH, rivals.GROVE, rivals.FLOW, rivals.FAILURES):
        for vectors in rivals.VECTORS:
            assert mean(name, vectors, FIRST) <= mean("cosine", vectors, FIRST)
    assert all(mean(rivals.ASYMVLM, v, FIRST) < 0.6 * mean("cosine", v, FIRST) for v in "zh")
    both = [mean(rivals.BOTH, v, FIRST) / mean("cosine", v, FIRST) for v in "zh"]
    assert all(0.6 < share < 0.75 for share in both)
    assert all(0.05 < mean("cosine", v, FIRST) - mean(rivals.GROVE, v, FIRST) < 0.15 for v in "zh")
    for name in ("noise", "posterior"):  # level: ahead, and by no more than chance explains
        assert 0 < mean(name, "h", FIRST) - mean("cosine", "h", FIRST) < 0.02
        assert ttest_rel(values(name, "h", FIRST), values("cosine", "h", FIRST)).pvalue > 0.05
    distances = [mean(name, "h", WRONG) for name in ("cosine", "noise", "posterior")]
    assert all(round(x, 2) == 0.92 for x in distances)
    others = {(r["method"], r["vectors"]) for r in rows()} - {
        (name, "h") for name in ("cosine", "noise", "posterior")
    }
    assert max(mean(*name, WRONG) for name in others) < min(distances)
    scores = {name: mean(*name, WRONG) for name in others if name[0] != "cosine"}
    z, h = ((rivals.FAILURES, vectors) for vectors in rivals.VECTORS)
    exceptions = [z, h, (rivals.BOTH, "h")]
    near = [x for name, x in scores.items() if name not in exceptions]
    assert (round(min(near), 2), round(max(near), 2)) == (0.45, 0.56)
    assert all(scores[name] > 0.6 for name in exceptions)
    assert abs(scores[z] - mean("cosine", "z", WRONG)) < 0.02
    assert scores[h] < mean("cosine", "h", WRONG) - 0.2
    level = mean("posterior", "h", UNSEEN) - mean("cosine", "h", UNSEEN)
    assert abs(level) < 0.002
    ood = {name: mean(*name, UNSEEN) for name in others if name[0] != "cosine"}
    assert max(ood, key=ood.get)[0] == rivals.GROVE
    on_z = {name: mean(*name, INVERTED) for name in others if name[1] == "z"}
    assert max(on_z, key=on_z.get)[0] == rivals.FLOW
    flow, cosine = (values(name, "z", INVERTED) for name in (rivals.FLOW, "cosine"))
    assert ttest_rel(flow, cosine).pvalue > 0.05
    page = BASELINES.read_text()
    assert re.search(r"halves the right nearest items, .* a third; `GPLVM` loses a tenth", page)
