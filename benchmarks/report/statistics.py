"""Means over seeds, paired differences, and which methods the data cannot tell from the best.

A metric of a run has bootstrap replicates over its queries; those of two methods with the same
seed come from the same resamples. The interval of a paired difference of n seeds has two sources,

    half^2 = (t_{.975, n-1} s / sqrt(n))^2 + (1.96 s_b)^2

with s the deviation of the difference between seeds and s_b that of its mean over the seeds between
replicates, one replicate for all seeds, since most tasks ask the same queries with every seed. (To
resample three seeds would do for neither: such intervals held the truth in 75 to 93 % of cases.)
Collected runs keep an interval instead of replicates; s_b^2 is then the sum of both methods' own
variances, as if their queries were others: such an interval is wider than a paired one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

Row = dict[str, Any]
Array = npt.NDArray[np.float64]
NORMAL = 1.96


def values(rows: Sequence[Row], metric: str) -> list[float]:
    """Of the seeds that define the metric."""
    measured = (row["metrics"].get(metric, {}).get("value") for row in rows)
    return [float(x) for x in measured if x is not None]


def replicates(rows: Sequence[Row], metric: str) -> dict[int, Array]:
    """Seed -> replicates, of the seeds that were resampled."""
    of = {row["seed"]: row["metrics"].get(metric, {}).get("replicates") for row in rows}
    return {
        seed: np.array([math.nan if x is None else x for x in measured], dtype=np.float64)
        for seed, measured in of.items()
        if measured
    }


def deviations(rows: Sequence[Row], metric: str) -> dict[int, float]:
    """Seed -> standard deviation over resamples, from the 95 % interval of a run."""
    cells = {row["seed"]: row["metrics"].get(metric, {}) for row in rows}
    return {
        seed: (cell["high"] - cell["low"]) / (2 * NORMAL)
        for seed, cell in cells.items()
        if cell.get("low") is not None and cell.get("high") is not None
    }


def difference(first: Sequence[Row], second: Sequence[Row], metric: str) -> dict[str, float]:
    """Mean of ``first - second`` over the seeds that both have, with a 95 % interval.

    Replicates count where every seed has them: a third seed narrows an interval by more than
    common queries do. Empty where no seed was resampled for both.
    """
    a, b = replicates(first, metric), replicates(second, metric)
    own, others = deviations(first, metric), deviations(second, metric)
    seeds, known = sorted(a.keys() & b.keys()), sorted(own.keys() & others.keys())
    if not seeds and not known:
        return {}
    if len(seeds) >= len(known):
        within = _within(np.stack([a[seed] - b[seed] for seed in seeds]))
    else:
        seeds = known
        spread = (np.mean([of[seed] for seed in seeds]) for of in (own, others))
        within = NORMAL * math.hypot(*spread)
    points = np.array([_value(first, s, metric) - _value(second, s, metric) for s in seeds])
    half = math.hypot(_between(points), within)
    mean = float(points.mean())
    return {"difference": mean, "low": mean - half, "high": mean + half}


def _between(points: Array) -> float:
    """Half the 95 % interval that the seeds [n] give: 0 for a single one, which has no spread."""
    n = len(points)
    if n == 1:
        return 0.0
    return float(student.ppf(0.975, n - 1) * points.std(ddof=1) / math.sqrt(n))


def _within(apart: Array) -> float:
    """Half the 95 % interval that replicates [n, B] give, where they are defined."""
    means = apart.mean(axis=0)
    defined = means[~np.isnan(means)]
    return NORMAL * float(defined.std(ddof=1)) if len(defined) > 1 else math.nan


def _value(rows: Sequence[Row], seed: int, metric: str) -> float:
    (value,) = (row["metrics"][metric]["value"] for row in rows if row["seed"] == seed)
    return math.nan if value is None else float(value)


def leaders(of: Mapping[str, Sequence[Row]], metric: str, higher: bool) -> tuple[str, list[str]]:
    """The best method by its mean, and every method whose interval to it holds zero.

    Methods that were not resampled for the metric are left out.
    """
    sign = 1 if higher else -1
    means = {
        name: sign * float(np.mean(values(rows, metric)))
        for name, rows in of.items()
        if replicates(rows, metric) or deviations(rows, metric)
    }
    if not means:
        return "", []
    best = max(means, key=lambda name: means[name])
    return best, [name for name in means if name == best or _near(of[best], of[name], metric)]


def _near(best: Sequence[Row], other: Sequence[Row], metric: str) -> bool:
    measured = difference(best, other, metric)
    return bool(measured) and measured["low"] <= 0 <= measured["high"]
