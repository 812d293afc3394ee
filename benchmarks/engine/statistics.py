"""Statistics of several runs, and the two rank statistics that only benchmarks use."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class SeedSummary(NamedTuple):
    """Mean over n seeds, and its standard error: NaN for a single seed."""

    mean: float
    standard_error: float
    n: int


def mean_and_standard_error(values: Sequence[float]) -> SeedSummary:
    """Return the mean over seeds and its standard error, ``std(values, ddof=1) / sqrt(n)``.

    Examples
    --------
    >>> summary = mean_and_standard_error([0.8, 0.9, 1.0])
    >>> round(summary.mean, 3), round(summary.standard_error, 4), summary.n
    (0.9, 0.0577, 3)
    """
    numbers, n = torch.tensor(values, dtype=torch.float64), len(values)
    error = float(numbers.std()) / n**0.5 if n > 1 else math.nan
    return SeedSummary(float(numbers.mean()), error, n)


def spearman(x: npt.ArrayLike | Tensor, y: npt.ArrayLike | Tensor) -> float:
    """Return Spearman's rank correlation of x and y [N]; NaN if one of them is constant.

    Examples
    --------
    >>> round(spearman([0.1, 0.2, 0.3, 0.9], [1.0, 3.0, 2.0, 4.0]), 3)
    0.8
    """
    from scipy.stats import spearmanr

    first, second = (np.asarray(v.cpu() if isinstance(v, Tensor) else v) for v in (x, y))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="An input array is constant")
        return float(spearmanr(first, second).statistic)


def mann_whitney(in_scores: Tensor, out_scores: Tensor) -> float:
    """Return the AUROC as ``U / (N M)``; the many resamples of an interval need its speed.

    ``U = sum_j #{i : in_i < out_j} + #{i : in_i = out_j} / 2`` (Mann & Whitney 1947)

    Examples
    --------
    >>> mann_whitney(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.3]))
    0.875
    """
    ordered = in_scores.sort().values
    below = torch.searchsorted(ordered, out_scores, right=False)
    not_above = torch.searchsorted(ordered, out_scores, right=True)
    return float((below + not_above).double().mean()) / (2 * len(ordered))
