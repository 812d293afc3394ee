"""Share answered, against an oracle: ``python -m benchmarks retrieval --pieces power``.

1,000 calibrations each of worlds in which the precision above every threshold is known. A query has
a probability p, and is right with a chance that is a function of p. The oracle knows it, and
answers from the lowest threshold on that keeps the precision. On the same data, at 95 % confidence:

ours            one score: all queries test; lists: one half tests, the other one fixes the starts
                (``guarantees._test_sequences``)
LTT, HB         Learn then Test with Hoeffding and Bentkus' p-value (Bates et al. 2021) and one
                fixed sequence from the strict end, as its paper proposes, over 100 thresholds
MAPIE           its ``BinaryClassificationController``, from the package, with its defaults but for
                95 % confidence, over those of 100 thresholds that accept anything. Left out where
                the package is not installed

One threshold: the largest mean share that an exact binomial test of a single threshold can answer
if it is told the best one. It has nothing to choose, and so no part of its error to share.

Answered: the mean share over calibrations, 0 where there is no rule. Broken: calibrations whose
rule has a true precision below the target, with an exact 95 % interval (Clopper & Pearson).
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, expit, logit
from scipy.stats import binom, binomtest

from benchmarks.plots import Axis, Figure, Series, headed, lines_plot
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric.calibration.guarantees._test_sequences import Tests
from laplace_metric.plots._style import STYLES

RUNS, SIZES, DELTA, GRID = 1_000, (100, 300, 1_000), 0.05, np.arange(100) / 100
WAYS = ("ours", "LTT, HB", "MAPIE")
DRAWN = ("pairs, 90%", "few right first hits, 30%")
"""Worlds of the figure."""
NOISE = 5e-4
"""Error of the true precision, which is no broken rule."""
Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rule = Callable[[Array, Flags, float], float | None]
FINE, PLACES = 400_000, 400
"""Queries by which the true precision is known, to .001; and thresholds of them that are tried."""


@dataclass(frozen=True)
class PowerWorld:
    """Queries with a normal score, which lies ``apart`` standard deviations higher if it is right.

    ``share``: of all queries that are right; ``step``: scores are rounded to it, 0 for not at all;
    ``lists``: half of the queries fix the starts.
    """

    name: str
    target: float
    share: float
    apart: float
    step: float = 0.0
    lists: bool = False

    def draw(self, g: np.random.Generator, n: int) -> tuple[Array, Flags]:
        """Probabilities [n] in [0, 1] that rise with the score, and which queries are right."""
        right = g.random(n) < self.share
        x = g.normal(size=n) + self.apart * right
        if not self.apart:  # any score, which says nothing
            return g.random(n), right
        x = np.round(x / self.step) * self.step if self.step else x
        return expit(logit(self.share) + self.apart * (x - self.apart / 2)), right

    def truth(self) -> tuple[Array, Array, Array]:
        """Probabilities from high to low, with true precision and share from each on."""
        p, right = self.draw(np.random.default_rng(1), FINE)
        order = np.argsort(-p, kind="stable")
        number = np.arange(1, FINE + 1)
        precision = np.cumsum(right[order]) / number
        if not self.apart:
            precision = np.full(FINE, self.share)
        return p[order], precision, number / FINE


def power_worlds() -> list[PowerWorld]:
    """Worlds of the issue: judged pairs, rare errors, ties, no signal, few right first hits."""
    return [
        PowerWorld("pairs, 90%", 0.9, 0.7, 0.15 / 0.07),
        PowerWorld("pairs, 95%", 0.95, 0.7, 0.15 / 0.07),
        PowerWorld("rare errors, 95%", 0.95, 0.9, 1.5),
        PowerWorld("ties, 90%", 0.9, 0.7, 0.15 / 0.07, step=0.5),
        PowerWorld("constant, just below 80%", 0.8, 0.7999, 0.0),
        PowerWorld("few right first hits, 30%", 0.3, 0.18, 1.1, lists=True),
    ]


def ours(p: Array, right: Flags, target: float) -> float | None:
    """Return the lowest threshold of one score."""
    tests = Tests.of(p, right)
    last = tests.lowest(target, DELTA)
    return None if last is None else float(tests.values[last.at])


def ours_of_lists(p: Array, right: Flags, target: float) -> float | None:
    """Return the lowest threshold by the second half, from starts of the first."""
    half = len(p) // 2
    tests = Tests.of(p[half:], right[half:], p[:half])
    last = tests.lowest(target, DELTA)
    return None if last is None else float(tests.values[last.at])


def hoeffding_bentkus(errors: Array, n: Array, most: float) -> Array:
    """Return the p-value of "the risk is at least ``most``", for n losses of 0 or 1."""
    share = np.minimum(errors / n.clip(1), most)
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = np.where(share > 0, share * np.log(share / most), 0.0)
        kl = kl + np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - most)), 0.0)
    bentkus = np.e * bdtr(np.ceil(errors), n.clip(1), most)
    return np.where(n > 0, np.minimum(np.minimum(np.exp(-n * kl), bentkus), 1.0), 1.0)


def learn_then_test(p: Array, right: Flags, target: float) -> float | None:
    """Return the lowest threshold of one fixed sequence from the strict end."""
    accepted = p[None] >= GRID[::-1, None]
    n = accepted.sum(1)
    chances = hoeffding_bentkus((accepted & ~right).sum(1), n, 1 - target)
    can = target**n <= DELTA  # fewer could not pass if all were right
    chances, grid = chances[can], GRID[::-1][can]
    passed = len(chances) if (chances <= DELTA).all() else int(np.argmin(chances <= DELTA))
    return float(grid[passed - 1]) if passed else None


def mapie(p: Array, right: Flags, target: float) -> float | None:
    """Return the threshold of MAPIE's controller that answers most."""
    from mapie.risk_control import BinaryClassificationController

    controller = BinaryClassificationController(
        predict_function=lambda x: np.column_stack([1 - x[:, 0], x[:, 0]]),
        risk="precision",
        target_level=target,
        confidence_level=1 - DELTA,
        list_predict_params=GRID[p.max() >= GRID],  # NaN of a threshold that accepts nothing
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        controller.calibrate(p[:, None], right.astype(int))
    valid = np.asarray(controller.valid_predict_params, float)
    return float(valid.min()) if valid.size else None


def ways_of(world: PowerWorld) -> dict[str, Rule]:
    """The three ways; MAPIE's only if it is installed."""
    found: dict[str, Rule] = {"ours": ours_of_lists if world.lists else ours}
    found["LTT, HB"] = learn_then_test
    return found | {"MAPIE": mapie} if find_spec("mapie") else found


def one_threshold(world: PowerWorld, n: int) -> float:
    """Return the largest ``share(t) P(the exact test of t passes)`` over thresholds t."""
    _, precision, share = world.truth()
    accepted = np.arange(n + 1)
    errors = binom.ppf(DELTA, accepted, 1 - world.target)
    errors -= binom.cdf(errors, accepted, 1 - world.target) > DELTA  # the most that pass; -1: none
    best = 0.0
    for at in np.linspace(0, FINE - 1, PLACES).astype(int):
        if precision[at] >= world.target:
            passes = binom.cdf(errors, accepted, 1 - precision[at])
            chance = float((binom.pmf(accepted, n, share[at]) * passes).sum())
            best = max(best, float(share[at]) * chance)
    return best


def power_of(world: PowerWorld, n: int, runs: int) -> dict[str, Any]:
    """Mean share answered and broken rules of every way, and the share of the oracle."""
    p, precision, share = world.truth()
    kept = np.flatnonzero(precision >= world.target)
    row: dict[str, Any] = {"world": world.name, "n": n, "runs": runs}
    row["oracle"] = float(share[kept[-1]]) if len(kept) else 0.0
    row["one threshold"] = one_threshold(world, n)
    ways = ways_of(world)
    answered, broken = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
    g = np.random.default_rng(0)
    for _ in range(runs):
        drawn = world.draw(g, n)
        for name, rule in ways.items():
            value = rule(*drawn, world.target)
            if value is None:
                continue
            at = int(np.searchsorted(-p, -value, side="right")) - 1
            if at < 0:
                continue
            answered[name] += float(share[at]) / runs
            broken[name] += bool(precision[at] < world.target - (NOISE if world.apart else 0))
    for name in ways:
        ends = binomtest(broken[name], runs).proportion_ci(0.95, method="exact")
        row[name] = {
            "answered": answered[name],
            "broken": broken[name] / runs,
            "low": float(ends.low),
            "high": float(ends.high),
        }
    return row


def run(options: Namespace) -> None:
    """Every world and size; twice as many lists, of which half fix the starts."""
    rows, runs = [], 20 if options.size == "smoke" else RUNS
    for world in power_worlds():
        for n in SIZES:
            rows.append(power_of(world, n * (2 if world.lists else 1), runs))
            print(rows[-1], flush=True)
    made = {"confidence": 1 - DELTA, "mapie": version("mapie") if find_spec("mapie") else None}
    write_record("power", {**made, "rows": rows}, folder_of(options))


def power_table() -> str:
    """Share answered and broken, by world and number of queries."""
    rows = read_record("power")["rows"]
    names = [name for name in WAYS if name in rows[0]]
    lines = []
    for row in rows:
        cells = [row["world"], f"{row['n']:,}"]
        cells += [f"{row[name]:.1%}" for name in ("oracle", "one threshold")]
        cells += [f"{row[name]['answered']:.1%}" for name in names]
        for name in names:
            told = row[name]
            cells.append(f"{told['broken']:.1%} ({told['low']:.1%} to {told['high']:.1%})")
        lines.append(cells)
    header = [
        "world",
        "queries",
        "oracle",
        "one threshold",
        *names,
        *(f"broken: {n}" for n in names),
    ]
    return markdown(header, lines)


def power_figure(record: dict[str, Any]) -> Figure:
    """Share answered against the oracle's, by the number of queries, in two of the worlds."""
    parts = []
    for world in DRAWN:
        own = [row for row in record["rows"] if row["world"] == world]
        n = [float(row["n"]) for row in own]
        series = [Series("the oracle", None, n, [1.0] * len(n))]
        for way, style in zip(WAYS, STYLES[: len(WAYS)], strict=True):
            if way in own[0]:
                share = [row[way]["answered"] / row["oracle"] for row in own]
                series.append(Series(way, style, n, share, sizes=[1.0] * len(n)))
        parts.append((series, Axis(f"answered: {world}", (0, 1.05), percent=True)))
    note = (
        "Mean share of queries that is answered, of what an oracle with the true precision\n"
        "answers; 1,000 calibrations each, 95 % confidence."
    )
    figure = lines_plot(parts, Axis("judged queries"))
    return headed(figure, "How much of what could be answered is answered?", note)


TABLES = {"retrieval-power": power_table}
