"""Guarantees with known truth: ``python -m benchmarks retrieval --pieces guarantees``.

2,000 calibrations each of worlds in which the precision above every threshold is known: hits have a
probability p, uniform or with ties, and are right with a chance that is constant on cells of p. The
share of calibrations that give a threshold whose true precision is below the target, with an exact
95 % interval (Clopper & Pearson), and the mean share of hits that is accepted. Three ways to choose
thresholds: those of other hits, fixed given these (Learn then Test); those of the tested hits, each
test without the hit at the threshold; and the tested hits' own without that correction.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from benchmarks.records import folder_of, write_record
from laplace_metric.calibration._sequences import STARTS, Tests

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
    g, level = np.random.default_rng(0), (1 - confidence) / STARTS
    broken: dict[str, int] = {"others": 0, "own": 0, "own, uncorrected": 0}
    made, covered = dict.fromkeys(broken, 0), dict.fromkeys(broken, 0.0)
    for _ in range(RUNS):
        (p, right), (others, _) = world.draw(g, n), world.draw(g, n)
        own = Tests.of(p, right)
        ways = Tests.of(p, right, others), own, replace(own, spent=0)
        for way, tests in zip(broken, ways, strict=True):
            last = tests.lowest(world.target, level)
            if last is not None:
                precision, share = world.above(float(tests.values[last]))
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
