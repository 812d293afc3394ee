"""Random splits of the queries of a problem, and the mean of a number over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import t
from torch import Tensor

K = 10
"""Neighbours that a calibration reads."""


def shuffled(part: tuple[Tensor, Tensor], limit: int) -> tuple[Tensor, Tensor]:
    """Return at most ``limit`` queries and their labels, in a fixed random order."""
    x, y = part
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:limit]
    return x[rows], y[rows]


def drawn(n: int, generator: torch.Generator) -> npt.NDArray[np.int64]:
    """Return n rows in a random order."""
    order: npt.NDArray[np.int64] = torch.randperm(n, generator=generator).numpy()
    return order


def summarised(rows: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the mean of every number and the half width of its 95 % t-interval."""
    summary = {}
    for key in rows[0]:
        values = torch.tensor([row[key] for row in rows], dtype=torch.float64)
        half = float(t.ppf(0.975, len(rows) - 1) * values.std() / len(rows) ** 0.5)
        summary[key] = {"mean": float(values.mean()), "half": half}
    return summary
