"""Guarantees with known truth: ``python -m benchmarks retrieval --pieces guarantees``.

2,000 calibrations each of worlds in which the precision above every threshold is known: hits have a
probability p, uniform or with ties, and are right with a chance that is constant on cells of p. The
share of calibrations that give a threshold whose true precision is below the target, with an exact
95 % interval (Clopper & Pearson), and the mean share of hits that is accepted. Three ways to choose
where sequences of tests begin: at other hits, fixed given these (Learn then Test); at tested hits,
the first test without the hit at its threshold; and at tested hits without that correction.

``--pieces fitted``: calibrations that fit the probability, too. The class of a query is drawn
from its exact posterior under a mixture of Gaussians with a gallery of 500 items, so that the
precision of every threshold among 2,000 queries is known. Halves test what the other half fits;
cross-fitted, all queries test fits to four fifths of the others, and the fit to all answers.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric.calibration._calibrated import calibrated
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration.guarantees._test_sequences import Tests
from laplace_metric.calibration.labels._votes import LabelVotes
from laplace_metric.errors import InputError, LaplaceMetricWarning

RUNS, SIZES, CONFIDENCES = 2_000, (60, 200, 500), (0.8, 0.95)
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Hits are right with a chance ``right`` [C] between ``edges`` [C + 1] of p.

    ``tied``: all hits of a cell have its middle as probability.
    """

    name: str
    target: float
    edges: Array
    right: Array
    tied: bool = False

    def draw(self, g: np.random.Generator, n: int) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Probabilities [n], and which hits are right [n]."""
        p = g.random(n)
        cell = np.searchsorted(self.edges, p, side="right") - 1
        middle = (self.edges[:-1] + self.edges[1:]) / 2
        return middle[cell] if self.tied else p, g.random(n) < self.right[cell]

    def above(self, threshold: float) -> tuple[float, float]:
        """True precision and share of the hits from a threshold on."""
        left, end = self.edges[:-1], self.edges[1:]
        if self.tied:
            mass = (end - left) * ((left + end) / 2 >= threshold - 1e-12)
        else:
            mass = (end - left.clip(min=threshold)).clip(min=0)
        return float(mass @ self.right / mass.sum()), float(mass.sum())


def worlds() -> list[World]:
    """Precision rises, is constant just below the target, falls, or goes up and down."""
    fine, cells = np.linspace(0, 1, 201), np.linspace(0, 1, 41)
    alternating = np.where(np.arange(40) % 2 == 0, 0.999, 0.6)
    return [
        World("calibrated", 0.8, fine, (fine[1:] + fine[:-1]) / 2),
        World("just below", 0.8, np.array([0, 1.0]), np.array([0.7999])),
        World("just below .5", 0.5, np.array([0, 1.0]), np.array([0.4999])),
        World("falling", 0.9, np.array([0, 0.8, 1]), np.array([0.99, 0.7])),
        World("alternating", 0.8, cells, alternating),
        World("two ties", 0.8, np.array([0, 0.5, 1]), np.array([0.9999, 0.6]), tied=True),
        World("many ties", 0.8, cells, alternating, tied=True),
    ]


def measured(world: World, n: int, confidence: float) -> dict[str, Any]:
    """Broken guarantees and coverage of the three ways."""
    g, delta = np.random.default_rng(0), 1 - confidence
    broken: dict[str, int] = {"others": 0, "own": 0, "own, uncorrected": 0}
    made, covered = dict.fromkeys(broken, 0), dict.fromkeys(broken, 0.0)
    for _ in range(RUNS):
        (p, right), (others, _) = world.draw(g, n), world.draw(g, n)
        own = Tests.of(p, right)
        ways = Tests.of(p, right, others), own, replace(own, spent=0)
        for way, tests in zip(broken, ways, strict=True):
            last = tests.lowest(world.target, delta)
            if last is not None:
                precision, share = world.above(float(tests.values[last.at]))
                broken[way] += precision < world.target - 1e-12
                made[way] += 1
                covered[way] += share / RUNS
    row: dict[str, Any] = {"world": world.name, "n": n, "confidence": confidence, "runs": RUNS}
    for way, count in broken.items():
        ends = binomtest(count, RUNS).proportion_ci(0.95, method="exact")
        found = {"broken": count / RUNS, "low": float(ends.low), "high": float(ends.high)}
        row[way] = found | {"made": made[way] / RUNS, "coverage": covered[way]}
    return row


def run(options: Namespace) -> None:
    """Every world, size and confidence."""
    cases = [(w, n, c) for w in worlds() for n in SIZES for c in CONFIDENCES]
    rows = [measured(*case) for case in cases]
    worst = {
        way: max(row[way]["high"] / (1 - row["confidence"]) for row in rows)
        for way in ("others", "own", "own, uncorrected")
    }
    write_record(
        "guarantees", {"worst upper end, of delta": worst, "rows": rows}, folder_of(options)
    )
    print(worst)


FITTED, TARGETS = {60: RUNS, 200: RUNS, 600: 1_000}, (0.8, 0.9, 0.95)
"""Calibrations of each number of queries."""
HALVES = 100
"""Calibrations by halves, whose guarantees are proven: only what they answer is measured."""
POPULATION, GALLERY, DEPTH, OPEN = 2_000, 500, 20, 0.1
ALPHA = 0.1
MIXTURES = {"rare errors": (6, 8, 3.6), "many errors": (10, 8, 2.4), "ties": (6, 5, 2.5)}
"""Classes, dimensions, and distance of their means in standard deviations."""


@dataclass(frozen=True)
class Mixture:
    """Queries of Gaussian classes, a tenth of them open-set, and what they find.

    ``posterior`` [Q, C]: the chance of each class; the rest is that of none.
    """

    name: str
    hits: SearchHits
    posterior: Array

    @classmethod
    def of(cls, name: str) -> Mixture:
        """A third of the queries is noisier than the others, which no feature says."""
        g, (n_classes, size, apart) = np.random.default_rng(0), MIXTURES.get(name, (6, 5, 2.5))
        means = apart / np.sqrt(2) * g.normal(size=(n_classes, size))
        of_items, of_queries = (
            g.integers(n_classes, size=GALLERY),
            g.integers(n_classes, size=POPULATION),
        )
        noise = np.where(g.random(POPULATION) < 1 / 3, 1.7, 1.0)
        items = means[of_items] + g.normal(size=(GALLERY, size))
        queries = means[of_queries] + noise[:, None] * g.normal(size=(POPULATION, size))
        if name == "ties":
            items, queries = items.round(), queries.round()
        posterior = _softmax(queries, means, noise)
        strange = g.random(POPULATION) < OPEN
        queries[strange] = 1.2 * apart * g.normal(size=(int(strange.sum()), size))
        posterior[strange] = 0
        distance = np.linalg.norm(queries[:, None] - items, axis=2)
        found = np.argsort(distance, 1, kind="stable")[:, :DEPTH]
        distance, labels = np.take_along_axis(distance, found, 1), of_items[found]
        if name == "constant":
            posterior[:] = (1 - CONSTANT) / (n_classes - 1)
            np.put_along_axis(posterior, labels[:, :1], CONSTANT, 1)
        odds = np.take_along_axis(_softmax(queries, means, np.ones(POPULATION)), labels, 1)
        odds = odds.clip(1e-3, 1 - 1e-3)
        votes = replace(LabelVotes.of(distance, labels), class_odds=np.log(odds / (1 - odds)))
        spread = np.exp(0.2 * g.normal(size=distance.shape))
        uncertainty, epistemic = np.exp(g.normal(size=POPULATION)), (queries**2).sum(1)
        hits = SearchHits(found, distance, spread, uncertainty, epistemic, votes)
        return cls(name, hits, posterior)

    def draw(self, g: np.random.Generator, n: int) -> LabelledHits:
        """Queries with replacement, each with a class of its posterior."""
        rows = g.integers(POPULATION, size=n)
        codes = (g.random(n)[:, None] > self.posterior[rows].cumsum(1)).sum(1)
        codes = np.where(codes == self.posterior.shape[1], -1, codes)
        hits = self.hits.take(rows)
        match = hits.voted.labels == codes[:, None]
        return LabelledHits(hits, match, codes >= 0, codes, np.arange(self.posterior.shape[1]))

    def right(self, labels: npt.NDArray[np.int_]) -> Array:
        """The chance [Q] that ``labels`` [Q] are those of the queries."""
        return np.take_along_axis(self.posterior, labels[:, None], 1)[:, 0]


CONSTANT = 0.7999
"""Share of right hits, whatever the evidence: every guarantee of .8 is broken."""


def _softmax(x: Array, means: Array, scale: Array) -> Array:
    score = -((x[:, None] - means) ** 2).sum(2) / (2 * scale[:, None] ** 2)
    odds = np.exp(score - score.max(1, keepdims=True))
    return np.asarray(odds / odds.sum(1, keepdims=True))


def fitted(world: Mixture, n: int, runs: int, cross_fit: int) -> dict[str, Any]:
    """Broken guarantees of ``runs`` calibrations, what they answer, and how often sets hold."""
    g = np.random.default_rng(n)
    outcomes: dict[str, list[tuple[float, bool]]] = {}
    covered, error = [], []
    for _ in range(runs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LaplaceMetricWarning)
            found = calibrated(world.draw(g, n), 10, GALLERY, g.permutation(n), cross_fit=cross_fit)
        assessed = found.assess(world.hits)
        labels = world.hits.voted.labels
        assert assessed.carrier is not None
        assert assessed.label_probability is not None
        answer = np.take_along_axis(labels, assessed.carrier[:, None], 1)[:, 0]
        told = {
            "match": (assessed.match_probability[:, 0], world.right(labels[:, 0])),
            "label": (assessed.label_probability, world.right(answer)),
        }
        error.append(float(abs(np.mean(told["match"][0] - told["match"][1]))))
        for of, (p, right) in told.items():
            for target in TARGETS:
                kept = _guaranteed(found, of, p, right, precision=target)
                outcomes.setdefault(f"{of}, {target:g}", []).extend(kept)
        kept = _guaranteed(found, "match", *told["match"], recall=0.9)
        outcomes.setdefault("recall, 0.9", []).extend(kept)
        try:
            members = found.members(assessed.logit, ALPHA)
        except InputError:
            continue
        own = np.where(members, labels, -1)
        held = [(own == c).any(1) for c in range(world.posterior.shape[1])]
        known = world.posterior.sum()
        covered.append(float((np.stack(held, 1) * world.posterior).sum() / known))
    row: dict[str, Any] = {"world": world.name, "n": n, "runs": runs, "cross_fit": cross_fit}
    row |= {"sets": float(np.mean(covered)) if covered else None, "gap": float(np.mean(error))}
    for name, kept in outcomes.items():
        broken = sum(bad for _, bad in kept)
        ends = binomtest(broken, runs).proportion_ci(0.95, method="exact")
        row[name] = {
            "broken": broken / runs,
            "low": float(ends.low),
            "high": float(ends.high),
            "made": len(kept) / runs,
            "coverage": sum(share for share, _ in kept) / runs,
        }
    return row


def _guaranteed(
    found: Calibration, of: str, p: Array, right: Array, **asked: float
) -> list[tuple[float, bool]]:
    """Share that is accepted, and whether the guarantee is broken; [] where none is given."""
    try:
        accepted = p >= found.guarantee(of=of, alpha=None, **asked).value
    except InputError:
        return []
    if "recall" in asked:
        true = right[accepted].sum() / right.sum()
    else:
        true = right[accepted].mean() if bool(accepted.any()) else 1.0
    return [(float(accepted.mean()), bool(true < next(iter(asked.values())) - 1e-12))]


def run_fitted(options: Namespace) -> None:
    """Every mixture and size, cross-fitted and by halves."""
    rows = []
    for name in (*MIXTURES, "constant"):
        world = Mixture.of(name)
        for n, runs in FITTED.items():
            rows += [fitted(world, n, runs, 5), fitted(world, n, HALVES, 0)]
            print(name, n, rows[-2]["match, 0.9"], rows[-1]["match, 0.9"], flush=True)
            write_record("fitted", {"rows": rows}, folder_of(options))


def fitted_table() -> str:
    """Guarantees of 90 % of the nearest neighbour, a recall, and retrieval sets."""
    header = ["world", "queries", "90% given: halves", "cross-fitted", "answered: halves"]
    header += ["cross-fitted", "broken", "recall of 90% broken", "sets of 90% hold"]
    rows = read_record("fitted")["rows"]
    halves = {(row["world"], row["n"]): row for row in rows if not row["cross_fit"]}
    lines = []
    for row in (row for row in rows if row["cross_fit"]):
        both = halves[row["world"], row["n"]], row
        name = "match, 0.8" if row["world"] == "constant" else "match, 0.9"
        cells = [row["world"] + ", 80%" * (row["world"] == "constant"), str(row["n"])]
        for key in ("made", "coverage"):
            cells += [f"{each[name][key]:.0%}" for each in both]
        for told in (row[name], row["recall, 0.9"]):
            cells.append(f"{told['broken']:.1%} (up to {told['high']:.1%})")
        lines.append([*cells, "" if row["world"] == "constant" else f"{row['sets']:.1%}"])
    return markdown(header, lines)


TABLES = {"retrieval-fitted": fitted_table}
