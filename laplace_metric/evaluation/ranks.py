"""Rank correlation: does the uncertainty grow with what should make it grow?"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from laplace_metric.errors import InputError, UndefinedMetricWarning
from laplace_metric.validation import ArrayLike, as_scores


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation, the correlation of mid-ranks (ties share their mean rank).

    Parameters
    ----------
    x, y : [N]
        Uncertainty, and the entropy of human labels, the share cut off, the severity of a
        corruption.

    Returns
    -------
    float
        In [-1, 1]. NaN with an ``UndefinedMetricWarning`` where one of them is constant.

    Raises
    ------
    InputError, NonFiniteError
        Empty, not 1-D, of different lengths, or NaN/infinite.

    Examples
    --------
    >>> round(spearman([0.1, 0.2, 0.3, 0.9], [1.0, 3.0, 2.0, 4.0]), 3)
    0.8
    """
    first, second = as_scores("x", x), as_scores("y", y)
    if len(first) != len(second):
        raise InputError(f"x has {len(first)} values and y {len(second)}. Give as many of both.")
    a, b = (ranks - ranks.mean() for ranks in (mid_ranks(first), mid_ranks(second)))
    size = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    if size == 0:
        message = "x or y is constant: the rank correlation is undefined, NaN."
        warnings.warn(message, UndefinedMetricWarning, stacklevel=2)
        return float("nan")
    return float((a @ b.to(a)) / size)


def mid_ranks(values: Tensor) -> Tensor:
    """Ranks from 1, float64; tied values share the mean of theirs.

    Examples
    --------
    >>> mid_ranks(torch.tensor([3.0, 1.0, 3.0, 9.0])).tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    ordered = values.sort().values
    low = torch.searchsorted(ordered, values, right=False)
    high = torch.searchsorted(ordered, values, right=True)
    return (low + high + 1).double() / 2
