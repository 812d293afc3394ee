"""Means over seeds, paired differences, and which methods the data cannot tell from the best.

A metric of a run has bootstrap replicates over its queries; those of two methods with the same
seed come from the same resamples. A paired difference is
resampled on two levels: seeds with replacement, and one replicate for all of them, since most
tasks ask the same queries with every seed (Davison & Hinkley 1997, section 3.8).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Row = dict[str, Any]
Array = npt.NDArray[np.float64]
DRAWS = 2_000


def values(rows: Sequence[Row], metric: str) -> list[float]:
    """Of the seeds that define the metric."""
    found = (row["metrics"].get(metric, {}).get("value") for row in rows)
    return [float(x) for x in found if x is not None]


def replicates(rows: Sequence[Row], metric: str) -> dict[int, Array]:
    """Seed -> replicates, of the seeds that were resampled."""
    of = {row["seed"]: row["metrics"].get(metric, {}).get("replicates") for row in rows}
    return {
        seed: np.array([math.nan if x is None else x for x in found], dtype=np.float64)
        for seed, found in of.items()
        if found
    }


def difference(first: Sequence[Row], second: Sequence[Row], metric: str) -> dict[str, float]:
    """Mean of ``first - second`` over the seeds that both have, with a 95 % interval.

    Empty where no seed was resampled for both.
    """
    a, b = replicates(first, metric), replicates(second, metric)
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        return {}
    apart = np.stack([a[seed] - b[seed] for seed in seeds])
    generator = np.random.default_rng(0)
    chosen = generator.integers(len(seeds), size=(DRAWS, len(seeds)))
    within = generator.integers(apart.shape[1], size=(DRAWS, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # undefined on every resample: NaN
        low, high = np.nanquantile(np.nanmean(apart[chosen, within], axis=1), [0.025, 0.975])
    point = {row["seed"]: row["metrics"][metric]["value"] for row in (*first, *second)}
    means = [_value(first, s, metric) - _value(second, s, metric) for s in seeds if s in point]
    return {"difference": float(np.mean(means)), "low": float(low), "high": float(high)}


def _value(rows: Sequence[Row], seed: int, metric: str) -> float:
    (value,) = (row["metrics"][metric]["value"] for row in rows if row["seed"] == seed)
    return math.nan if value is None else float(value)


def leaders(of: Mapping[str, Sequence[Row]], metric: str, higher: bool) -> tuple[str, list[str]]:
    """The best method by its mean, and every method whose interval to it holds zero.

    Methods without replicates of the metric are left out.
    """
    sign = 1 if higher else -1
    means = {
        name: sign * float(np.mean(values(rows, metric)))
        for name, rows in of.items()
        if replicates(rows, metric)
    }
    if not means:
        return "", []
    best = max(means, key=lambda name: means[name])
    return best, [name for name in means if name == best or _near(of[best], of[name], metric)]


def _near(best: Sequence[Row], other: Sequence[Row], metric: str) -> bool:
    found = difference(best, other, metric)
    return bool(found) and found["low"] <= 0 <= found["high"]
