"""A metric with its bootstrap: estimate, interval, and replicates that pair between methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from laplace_metric.evaluation import (
    bootstrap_replicates,
    expected_calibration_error,
    mann_whitney,
    r_auroc,
    sparsification,
)

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
    """What a protocol says of one fitted method.

    Parameters
    ----------
    scores : dict of Score or float
    curves : dict
        Points to plot, plain numbers.
    pictures : dict
        Queries with their neighbours, plain values.
    """

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
