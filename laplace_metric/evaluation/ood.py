"""Out-of-distribution detection: does the uncertainty set strange inputs apart?

Every function takes raw uncertainties (any real numbers, higher is stranger) of the known and of
the strange inputs. Scores are ranked as they are: no sigmoid, no rescaling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from sklearn import metrics
from torch import Tensor

from laplace_metric.validation import ArrayLike, as_scores, require_share


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
