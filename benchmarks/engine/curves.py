"""Curves as a few rounded numbers, so that a report needs no arrays of queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from laplace_metric.evaluation import Reliability, abstention, roc_curve, sparsification

POINTS = 51
BINS = 30
ALIKE = 1e-4
"""Relative range below which scores are one value, but for rounding."""
Curve = dict[str, list[float]]


def short(values: Any) -> list[float]:
    """Rounded to four digits."""
    return [round(float(value), 4) for value in values]


def roc(known: Tensor, ood: Tensor) -> Curve:
    """True positive rates at evenly spaced false positive rates, the highest at each."""
    curve = roc_curve(known, ood)
    x = np.linspace(0, 1, POINTS)
    place = np.searchsorted(curve.fpr.numpy(), x, side="right") - 1
    return {"fpr": short(x), "tpr": short(curve.tpr.numpy()[place])}


def removal(uncertainty: Tensor, right: Tensor) -> Curve:
    """Sparsification, with its random and oracle curves."""
    found = sparsification(uncertainty, right)
    return {
        name: short(getattr(found, name)[::3])
        for name in ("fractions", "curve", "random", "oracle")
    }


def coverage(uncertainty: Tensor, right: Tensor) -> Curve:
    """Risk (share of wrong answers) against the share of queries answered."""
    found = abstention(uncertainty, right)
    return {"coverage": short(found.coverage), "risk": short(1 - found.recall)}


def reliability(found: Reliability) -> Curve:
    """Bins that hold queries."""
    filled = found.bin_count > 0
    return {
        "confidence": short(found.bin_confidence[filled]),
        "accuracy": short(found.bin_accuracy[filled]),
        "count": [float(n) for n in found.bin_count[filled]],
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
