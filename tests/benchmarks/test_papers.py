"""The papers as tests: published runs, closed forms, and the criterion of the verdicts."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from baselines.distributions import VonMisesFisher
from baselines.explicit_concentration import ExplicitConcentrationLoss
from benchmarks.papers import closed_forms, published
from benchmarks.records import read_record
from benchmarks.recovery import losses
from benchmarks.report.claims import measured, tables
from benchmarks.report.claims.criterion import (
    CONTRADICTED,
    OPEN,
    OTHER,
    REPRODUCED,
    SAME,
    SHORTER,
    Ours,
    Side,
    Value,
)
from laplace_metric.errors import FileFormatError, InputError

DATA = os.environ.get("LAPLACE_METRIC_DATA")
NAMES = ("r_auroc", "recall@1")


def written(folder: Path, runs: list[dict[str, str]]) -> Path:
    path = folder / published.FILE
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, runs[0].keys())
        writer.writeheader()
        writer.writerows(runs)
    return folder


def run_of(recall: float, errors: float, **others: str) -> dict[str, str]:
    """A run whose old and new numbers are opposite."""
    columns = {name for pair in published.CORRELATED.values() for name in pair}
    return {
        **dict.fromkeys(columns, str(-errors)),
        f"{published.NEW}_{published.R_AUROC}": str(errors),
        f"{published.NEW}_{published.RECALL}": str(recall),
        "model": "resnet50", "loss": "elk", "num-heads": "", "unc-module": "u", "lr": "0.1",
        **others,
    }  # fmt: skip


def test_runs_without_recall_are_left_out(tmp_path):
    runs = [run_of(0.2, 0.5), run_of(0.3, 0.6), run_of(0.4, 0.7), run_of(0.09, 0.9)]
    runs += [run_of(math.nan, 0.9), {**run_of(0.5, 0.9), f"{published.NEW}_r1": ""}]
    found = published.rows(written(tmp_path, runs))
    first, *_, last = found
    assert (first["value"], first["runs"]) == (pytest.approx(-1), 3)
    assert last["quantity"] == "three seeds"
    assert [last[name] for name in NAMES] == pytest.approx([0.6, 0.3])
    (traded,) = (row for row in found if "trade-offs" in row["quantity"])
    assert (traded["value"], traded["of"]) == (0, 1)  # recall and R-AUROC rise together


def test_a_setting_is_a_rate_and_a_method_a_network(tmp_path):
    runs = [run_of(0.2 + 0.1 * i, 0.6 - 0.1 * i, lr=str(i < 2)) for i in range(4)]
    runs += [run_of(0.3, 0.5, model="vit_dropout", **{"num-heads": "10"})] * 3
    runs += [run_of(0.3, 0.5, **{"num-heads": "10"})] * 2
    found = published.rows(written(tmp_path, runs))
    seeds = [row for row in found if row["quantity"] == "three seeds"]
    assert [(row["backbone"], row["method"]) for row in seeds] == [("vit", "dropout")]
    (traded,) = (row for row in found if "trade-offs" in row["quantity"])
    assert (traded["value"], traded["of"]) == (1, 3)


def test_errors_of_the_file_of_runs(tmp_path):
    with pytest.raises(InputError, match=r"published_runs.csv is missing"):
        published.rows(tmp_path)
    lacking = {k: v for k, v in run_of(0.2, 0.5).items() if not k.endswith("rcorr_entropy")}
    with pytest.raises(FileFormatError, match="rcorr_entropy"):
        published.rows(written(tmp_path / "a", [lacking]))
    with pytest.raises(FileFormatError, match="no run"):
        published.rows(written(tmp_path / "b", [run_of(0.05, 0.5)]))


@pytest.mark.skipif(DATA is None, reason="LAPLACE_METRIC_DATA is not set")
def test_the_record_is_what_the_published_runs_give():
    if not (Path(DATA) / published.FILE).is_file():
        pytest.skip(f"no {published.FILE}")
    rows = [row for row in read_record("papers")["rows"] if row["source"] == "published runs"]
    again = published.rows(Path(DATA))
    assert [row["quantity"] for row in rows] == [row["quantity"] for row in again]
    for row, other in zip(rows, again, strict=True):
        for key, value in other.items():
            assert row[key] == (pytest.approx(value) if isinstance(value, float) else value)


def gradient(k: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, k)[0]


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.001, 1))
def test_the_minimum_of_equation_6_is_that_of_the_loss_of_the_baseline(cosine, align, regularize):
    c = torch.tensor([cosine], dtype=torch.float64)
    k = closed_forms.squared(c, align, regularize).repeat(2).requires_grad_()
    mu = torch.stack([torch.cat([torch.ones_like(c), torch.zeros_like(c)]),
                      torch.cat([c, (1 - c**2).clamp_min(0).sqrt()])])  # fmt: skip
    no_base = lambda z, y: z.sum() * 0  # noqa: E731
    loss = ExplicitConcentrationLoss(no_base, align=align, regularize=regularize)
    value = loss(mu, torch.zeros(2, dtype=torch.long), k)
    assert gradient(k, value).abs().max() < 1e-9


@given(st.floats(-1, 1), st.floats(0.01, 1), st.floats(0.001, 1), st.integers(2, 512))
def test_the_minimum_of_equation_5_and_where_it_has_none(cosine, align, regularize, dimension):
    c = torch.tensor([cosine], dtype=torch.float64)
    k = closed_forms.approximated(c, align, regularize, dimension)

    def loss(k: torch.Tensor) -> torch.Tensor:
        return (-2 * align * k * c + 2 * regularize * (k - (dimension - 1) / 2 * k.log())).sum()

    if align * cosine < regularize * (1 - 1e-5):
        k.requires_grad_()
        assert gradient(k, loss(k)).abs() < 1e-9 * (1 + k)
        assert loss(1.01 * k) > loss(k)
        assert loss(0.99 * k) > loss(k)
    elif align * cosine >= regularize:
        assert k.isinf().all()
        ever_lower = [float(loss(torch.tensor([x], dtype=torch.float64))) for x in (1e3, 1e5, 1e7)]
        assert ever_lower == sorted(ever_lower, reverse=True)


def test_two_densities_whose_order_the_exponent_changes():
    """A counterexample of proposition 1, by the distribution itself."""
    mu = torch.eye(1, closed_forms.DIMENSION, dtype=torch.float64)
    clear, wide = (
        VonMisesFisher(mu, torch.tensor([k], dtype=torch.float64)) for k in (200.0, 10.0)
    )
    across = torch.zeros_like(mu)
    across[0, 1] = 1
    x = torch.nn.functional.normalize(0.1 * mu + across, dim=-1)
    cosine = float((x * mu).sum())
    assert wide.log_prob(x) > clear.log_prob(x)
    assert 10 * cosine < 200 * cosine
    assert closed_forms.changed_order()["value"] > 0.05


@pytest.mark.parametrize(
    ("asked", "values", "conditions", "verdict"),
    [
        (Value(0.54, 0.01), [0.549], SAME, REPRODUCED),
        (Value(0.54, 0.01), [0.551], SAME, CONTRADICTED),
        (Value(0.54, 0.01), [0.551], SHORTER, OPEN),
        (Value(0.54, 0.01), [0.54], OTHER, OPEN),
        (Value(6.15, 0.01, 0.61), [7.3], SHORTER, REPRODUCED),  # of the printed error
        (Value(6.15, 0.01, 0.61), [7.4], SHORTER, OPEN),
        (Value(0.8, 0.01), [0.2, 1.0], SHORTER, REPRODUCED),  # of our own error
        (Value(0.8, 0.01, chance=0), [0.2, 1.0], SHORTER, REPRODUCED),
        (Value(0.8, 0.01, chance=0), [-0.2, 1.0], SHORTER, OPEN),  # reaches guessing
        (Side(low=0), [0.1, 0.11, 0.12], OTHER, REPRODUCED),
        (Side(low=0), [-0.1, -0.11, -0.12], OTHER, CONTRADICTED),
        (Side(low=0), [-0.01, 0.11, 0.12], OTHER, OPEN),
        (Side(high=0), [-0.1, -0.11, -0.12], SAME, REPRODUCED),
        (Side(low=0), [0.0], SAME, CONTRADICTED),  # the end is no part of the side
    ],
)
def test_the_criterion(asked, values, conditions, verdict):
    ours = Ours.exact(values[0]) if len(values) == 1 else Ours.of_seeds(values)
    if values == [0.2, 1.0]:
        assert ours.error == pytest.approx(0.4)
        ours = Ours(ours.mean, 0.25, ours.low, ours.high, ours.text)
    assert asked.verdict(ours, conditions) == verdict


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6).filter(lambda x: max(x) - min(x) > 0.01))
def test_a_side_is_a_t_test(values):
    ours, p = Ours.of_seeds(values), ttest_1samp(values, 0).pvalue
    if abs(p - 0.05) > 1e-6:
        assert (Side(low=0).verdict(ours, OTHER) != OPEN) == (p < 0.05)


@pytest.mark.parametrize(("hits", "n"), [(6, 6), (0, 6), (3, 7)])
def test_intervals_of_shares_are_exact(hits, n):
    found = binomtest(hits, n).proportion_ci(0.95, method="exact")
    ours = measured.share(hits, n)
    assert (ours.low, ours.high) == pytest.approx((found.low, found.high))


def test_every_claim_names_its_record_and_every_contradiction_its_reason():
    for name, (_, claims) in tables.PAPERS.items():
        assert len({(claim.where, claim.what, claim.why) for claim in claims}) == len(claims), name
        for claim in claims:
            *_, verdict, record, why = tables.cells(claim)
            assert record
            assert why, claim.what
            assert verdict.strip("*") in tables.VERDICTS
            assert claim.printed


def test_a_changed_record_changes_the_verdict(monkeypatch):
    claims = tables.PAPERS["explicit"][1]
    (claim,) = (c for c in claims if c.what.startswith("MCInfoNCE with two views"))
    assert claim.verdict() == REPRODUCED
    module = tables.explicit_concentration
    rows = [{**row, "severity": -row["severity"]} for row in read_record("views")["rows"]]
    monkeypatch.setattr(module, "read_record", lambda _: {"rows": rows})
    assert claim.verdict() == CONTRADICTED


def verdicts(paper: str, start: str) -> set[str]:
    return {c.verdict() for c in tables.PAPERS[paper][1] if c.what.startswith(start)}


def test_the_verdict_of_the_page_in_words():
    """Each part of the first paragraph, by the verdicts of its claims."""
    exact = [c for _, claims in tables.PAPERS.values() for c in claims if c.conditions == SAME]
    false = [c.where for c in exact if c.verdict() != REPRODUCED]
    assert false == ["proposition 1"]
    crops_and_people = [
        c for c in tables.PAPERS["mcinfonce"][1] if c.where in ("table 4", "table 5")
    ]
    assert {c.verdict() for c in crops_and_people if "MCInfoNCE" in c.what} == {REPRODUCED}
    assert verdicts("explicit", "MCInfoNCE with two views") == {REPRODUCED}
    assert verdicts("explicit", "its method, severity") == {CONTRADICTED}
    assert CONTRADICTED in verdicts("url", "the ranking")
    assert REPRODUCED not in verdicts("url", "the ranking")
    assert verdicts("prolip", "general texts") == {CONTRADICTED, OPEN}


def test_discounts_in_words():
    rows = [row["first item right"] for row in read_record("discount")["rows"]]
    of = {name: [row[name] for row in rows] for name in rows[0]}
    ahead = {name: Ours.of_seeds([a - b for a, b in zip(own, of["cosine"], strict=True)])
             for name, own in of.items()}  # fmt: skip
    discounts = {name: x for name, x in ahead.items() if "discounted" in name}
    assert len(discounts) == 4
    assert all(x.mean < 0.001 for x in discounts.values())
    assert discounts["cosine, discounted, beta 1000"].mean < -0.05
    assert all(ahead[name].low > 0.05 for name in ("head inputs", "noise", "posterior"))


def test_the_two_hibs_in_words():
    of = {
        name: sum(measured.of_rows("people_hib", ("metrics", name, "value"))) / 3
        for name in ("recall@1", "entropy rank")
    }
    text = " ".join((Path(tables.__file__).parents[2] / "README.md").read_text().split())
    recall, people = (f"{value:.2f}"[1:] for value in of.values())
    assert f"(recall@1 {recall}) and follows people by {people} " in text
    assert of["recall@1"] > 0.65


def test_elk_without_its_factor_finds_the_level_of_kappa():
    rows = {name: [row for row in read_record("losses")["rows"] if row["loss"] == name]
            for name in losses.RUNS}  # fmt: skip
    error = {name: sum(r["certainty"]["rmse"] for r in of) / len(of) for name, of in rows.items()}
    page = (Path(published.__file__).parent / "README.md").read_text()
    assert {len(of) for of in rows.values()} == {3}
    assert f"its kappas have the right level (RMSE {error['elk']:.1f}), with it " in page
    assert f"with it {error['elk times 20']:.1f} (printed: 21.7)" in page


def test_ranks_of_kappa_spread_over_the_seeds():
    ranks = sorted(row["certainty"]["rank"] for row in read_record("levels")["rows"])
    page = (Path(published.__file__).parent / "README.md").read_text()
    said = ", ".join(f"{rank:.2f}"[1:] for rank in ranks)
    assert f"ranks of kappa spread over the seeds ({said})" in page
