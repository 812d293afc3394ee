"""Out-of-distribution detection: does the uncertainty set strange inputs apart?

Every function takes raw uncertainties (any real numbers, higher is stranger) of the known and of
the strange inputs. Scores are ranked as they are: no sigmoid, no rescaling.

R-AUROC: does the uncertainty tell the queries whose nearest neighbour is wrong?

Rank correlation: does the uncertainty grow with what should make it grow?
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from sklearn import metrics
from torch import Tensor

from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores, require_share
from laplace_metric.errors import InputError, UndefinedMetricWarning


@dataclass(frozen=True)
class RocCurve:
    """Receiver operating characteristic, strange inputs being the positive class.

    Attributes
    ----------
    fpr, tpr : Tensor [T]
        False and true positive rates, from (0, 0) to (1, 1), float64.
    thresholds : Tensor [T]
        Decreasing; an input is called strange at or above it. The first is infinite.
    """

    fpr: Tensor
    tpr: Tensor
    thresholds: Tensor


def auroc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Chance that a strange input is more uncertain than a known one, ties counting half.

    Parameters
    ----------
    in_scores : [N]
        Uncertainty of in-distribution inputs.
    out_scores : [M]
        Uncertainty of out-of-distribution inputs, the positive class.

    Returns
    -------
    float
        In [0, 1]; 0.5 for a constant score.

    Raises
    ------
    InputError, NonFiniteError
        Empty, not 1-D, or NaN/infinite scores.

    Examples
    --------
    >>> auroc([0.1, 0.2, 0.3], [0.25, 0.9])
    0.8333333333333334
    """
    truth, scores = _pooled(in_scores, out_scores)
    return float(metrics.roc_auc_score(truth, scores))


def auprc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Average precision of the strange inputs: ``sum_n (R_n - R_{n-1}) P_n``, not a trapezoid.

    Parameters and errors are those of `auroc`. A constant score gives the share of strange inputs.

    Examples
    --------
    >>> auprc([0.1, 0.2, 0.3], [0.25, 0.9])
    0.8333333333333333
    """
    truth, scores = _pooled(in_scores, out_scores)
    return float(metrics.average_precision_score(truth, scores))


def fpr_at_tpr(in_scores: ArrayLike, out_scores: ArrayLike, tpr: float = 0.95) -> float:
    """Share of known inputs called strange at the highest threshold that finds ``tpr`` of them.

    Parameters and errors are those of `auroc`; ``tpr`` lies between 0 and 1. No interpolation:
    the first point of the curve at or above ``tpr`` counts. A constant score gives 1.

    Examples
    --------
    >>> fpr_at_tpr([0.1, 0.2, 0.3, 0.4], [0.25, 0.9])
    0.5
    """
    wanted = require_share("tpr", tpr)
    truth, scores = _pooled(in_scores, out_scores)
    false_rate, true_rate, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
    return float(false_rate[np.argmax(true_rate >= wanted)])


def roc_curve(in_scores: ArrayLike, out_scores: ArrayLike) -> RocCurve:
    """The ROC curve of the strange inputs, corners only, on the device of ``in_scores``.

    Parameters and errors are those of `auroc`.

    Examples
    --------
    >>> roc_curve([0.1, 0.2], [0.3, 0.4]).tpr.tolist()
    [0.0, 0.5, 1.0, 1.0]
    """
    device = as_scores("in_scores", in_scores).device
    truth, scores = _pooled(in_scores, out_scores)
    parts = metrics.roc_curve(truth, scores)
    return RocCurve(*(torch.as_tensor(part, dtype=torch.float64, device=device) for part in parts))


def _pooled(
    in_scores: ArrayLike, out_scores: ArrayLike
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Truth (strange or not) and scores of both samples together."""
    known = as_scores("in_scores", in_scores).cpu().numpy()
    strange = as_scores("out_scores", out_scores).cpu().numpy()
    truth = np.arange(len(known) + len(strange)) >= len(known)
    return truth, np.concatenate([known, strange])


def r_auroc(uncertainty: ArrayLike, correct: ArrayLike) -> float:
    """AUROC of the uncertainty against "recall@1 is wrong" (URL benchmark, Kirchhof et al. 2023).

    Parameters
    ----------
    uncertainty : [Q]
        Higher is less certain.
    correct : [Q]
        Whether recall@1 is right: booleans, or 0 and 1.

    Returns
    -------
    float
        In [0, 1], 0.5 for uninformative scores. NaN with an ``UndefinedMetricWarning`` when all
        queries are right or all are wrong: there is nothing to tell apart.

    Raises
    ------
    InputError, NonFiniteError
        Mismatched lengths, ``correct`` not 0 or 1, NaN or infinite values.

    Examples
    --------
    >>> r_auroc([0.1, 0.4, 0.2, 0.9], [1, 1, 1, 0])
    1.0
    """
    scores = as_scores("uncertainty", uncertainty)
    rates = as_rates("correct", correct, scores, "uncertainty")
    right = rates == 1
    if bool((~right & (rates != 0)).any()):
        raise InputError("correct has values between 0 and 1. Give recall@1: 0 or 1 a query.")
    if bool(right.all()) or not bool(right.any()):
        state = "right" if bool(right.all()) else "wrong"
        message = f"all {len(right)} queries are {state}: R-AUROC is undefined, NaN."
        warnings.warn(message, UndefinedMetricWarning, stacklevel=2)
        return float("nan")
    return auroc(scores[right], scores[~right])


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
