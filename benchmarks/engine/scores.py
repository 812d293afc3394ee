"""What is measured: metrics with their bootstrap, and curves as a few rounded numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.engine.statistics import mann_whitney
from laplace_metric.evaluation import (
    Reliability,
    abstention,
    expected_calibration_error,
    r_auroc,
    sparsification,
)
from laplace_metric.evaluation._bootstrap import bootstrap_replicates

DIGITS = 5


@dataclass(frozen=True)
class Score:
    """A number; where it was resampled, its replicates over the queries.

    The resamples are the same for every method on the same queries.
    """

    value: float
    replicates: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Value, 95 % interval, replicates; null where undefined."""
        content: dict[str, Any] = {"value": _finite(self.value)}
        known = torch.tensor([x for x in self.replicates if math.isfinite(x)])
        if len(known):
            low, high = torch.quantile(known, torch.tensor([0.025, 0.975])).tolist()
            content |= {"low": round(low, DIGITS), "high": round(high, DIGITS)}
            content["replicates"] = [_finite(x) for x in self.replicates]
        return content


@dataclass(frozen=True)
class Measured:
    """What a protocol says of one fitted method: scores, points to plot, queries to look at."""

    scores: dict[str, Score | float]
    curves: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        scores = {
            name: (value if isinstance(value, Score) else Score(float(value))).to_json()
            for name, value in self.scores.items()
        }
        return {"metrics": scores, "curves": self.curves, "pictures": self.pictures}


def resampled(metric: Callable[..., float], *arrays: Tensor, n: int, paired: bool = True) -> Score:
    """A metric of arrays whose rows are resampled together (or apart)."""
    drawn = bootstrap_replicates(metric, *arrays, n=n, paired=paired)
    return Score(float(metric(*arrays)), tuple(drawn.tolist()))


def mean(values: Tensor, n: int) -> Score:
    """Of values [Q]."""
    return resampled(lambda x: float(x.double().mean()), values, n=n)


def error_detection(uncertainty: Tensor, right: Tensor, n: int) -> dict[str, Score]:
    """R-AUROC, and the area under the sparsification curve."""
    return {
        "r_auroc": resampled(r_auroc, uncertainty, right, n=n),
        "ausc": resampled(lambda u, r: sparsification(u, r).ausc, uncertainty, right, n=n),
    }


def calibration_error(confidence: Tensor, right: Tensor, n: int) -> Score:
    """Expected calibration error of votes."""
    return resampled(lambda c, r: expected_calibration_error(c, r).ece, confidence, right, n=n)


def detection(known: Tensor, ood: Tensor, n: int) -> Score:
    """AUROC of uncertainties, OOD against known."""
    return resampled(mann_whitney, known.double(), ood.double(), n=n, paired=False)


def _finite(value: float) -> float | None:
    return round(value, DIGITS) if math.isfinite(value) else None


POINTS = 51
BINS = 30
ALIKE = 1e-4
"""Relative range below which scores are one value, but for rounding."""
Curve = dict[str, list[float]]


def short(values: Any) -> list[float]:
    """Rounded to four digits."""
    return [round(float(value), 4) for value in values]


def roc_points(known: Tensor, ood: Tensor) -> Curve:
    """True positive rates at evenly spaced false positive rates, the highest at each."""
    from sklearn import metrics

    truth = torch.arange(len(known) + len(ood)) >= len(known)
    fpr, tpr, _ = metrics.roc_curve(truth, torch.cat([known, ood]).double())
    x = np.linspace(0, 1, POINTS)
    return {"fpr": short(x), "tpr": short(tpr[np.searchsorted(fpr, x, side="right") - 1])}


def removal_curve(uncertainty: Tensor, right: Tensor) -> Curve:
    """Sparsification, with its random and oracle curves."""
    curve = sparsification(uncertainty, right)
    names = ("fractions", "curve", "random", "oracle")
    return {name: short(getattr(curve, name)[::3]) for name in names}


def risk_curve(uncertainty: Tensor, right: Tensor) -> Curve:
    """Risk (share of wrong answers) against the share of queries answered."""
    curve = abstention(uncertainty, right)
    return {"coverage": short(curve.coverage), "risk": short(1 - curve.recall)}


def reliability_bins(votes: Reliability) -> Curve:
    """Bins that hold queries."""
    filled = votes.bin_count > 0
    return {
        "confidence": short(votes.bin_confidence[filled]),
        "accuracy": short(votes.bin_accuracy[filled]),
        "count": [float(n) for n in votes.bin_count[filled]],
    }


def histograms(known: Tensor, ood: Mapping[str, Tensor]) -> dict[str, Any]:
    """Shares of known and OOD inputs in common bins; logarithmic where all are positive."""
    values = {"queries": known.double().numpy()}
    values |= {name: scores.double().numpy() for name, scores in ood.items()}
    pooled = np.concatenate(list(values.values()))
    low, high = float(pooled.min()), float(pooled.max())
    logarithmic = low > 0 and high > 10 * low
    if high - low <= ALIKE * max(abs(low), abs(high)):
        low, high = low - 0.5, high + 0.5
    edges = np.geomspace(low, high, BINS + 1) if logarithmic else np.linspace(low, high, BINS + 1)
    edges[0], edges[-1] = low, high
    counts = {name: np.histogram(x, edges)[0] / len(x) for name, x in values.items()}
    return {
        "logarithmic": logarithmic,
        "edges": [float(f"{edge:.8g}") for edge in edges],
        "shares": {name: short(share) for name, share in counts.items()},
    }
