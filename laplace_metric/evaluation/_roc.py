"""Detection by the uncertainty: out-of-distribution inputs, and wrong answers.

    AUROC      P(u_out > u_in) + P(u_out = u_in) / 2
    R-AUROC    AUROC of the queries whose nearest neighbour is wrong against the others

Every function takes raw uncertainties (any real numbers, higher is less certain) and ranks them as
they are: no sigmoid, no rescaling.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores, check_share
from laplace_metric.errors import InputError, UndefinedMetricWarning, callers_line


def auroc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Compute the chance that an out-of-distribution input is the less certain of two.

    Ties count half.

    Parameters
    ----------
    in_scores : [N]
        Uncertainty of in-distribution inputs.
    out_scores : [M]
        Uncertainty of out-of-distribution inputs, the positive class.

    Returns
    -------
    float
        Area under the ROC curve, in [0, 1]; 0.5 for a constant score.

    Raises
    ------
    InputError
        Empty or not 1-D.
    NonFiniteError
        NaN or infinite scores.

    Examples
    --------
    >>> auroc([0.1, 0.2, 0.3], [0.25, 0.9])
    0.8333333333333334
    """
    from scipy.stats import rankdata

    truth, scores = _pooled(in_scores, out_scores)
    n_out = int(truth.sum())
    # pairs, by the ranks from 1 of what is outside, shared by ties (Mann and Whitney 1947)
    pairs = rankdata(scores)[truth].sum() - n_out * (n_out + 1) / 2
    return float(pairs / (n_out * (len(truth) - n_out)))


def auprc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Compute the average precision of flagging: ``sum_n (R_n - R_{n-1}) P_n``, not a trapezoid.

    Parameters and errors are those of `auroc`. A constant score gives the share of
    out-of-distribution inputs.

    Parameters
    ----------
    in_scores : [N]
        Uncertainty of in-distribution inputs.
    out_scores : [M]
        Uncertainty of out-of-distribution inputs, the positive class.

    Examples
    --------
    >>> auprc([0.1, 0.2, 0.3], [0.25, 0.9])
    0.8333333333333333
    """
    from sklearn import metrics

    truth, scores = _pooled(in_scores, out_scores)
    return float(metrics.average_precision_score(truth, scores))


def fpr_at_tpr(in_scores: ArrayLike, out_scores: ArrayLike, tpr: float = 0.95) -> float:
    """Compute the false positive rate where the share ``tpr`` of ``out_scores`` is flagged.

    Parameters and errors are those of `auroc`; ``tpr`` lies between 0 and 1. No interpolation:
    the first point of the curve at or above ``tpr`` counts. A constant score gives 1.

    Parameters
    ----------
    in_scores : [N]
        Uncertainty of in-distribution inputs.
    out_scores : [M]
        Uncertainty of out-of-distribution inputs, the positive class.
    tpr : float in (0, 1)
        Share of ``out_scores`` that is flagged. Default: 0.95.

    Examples
    --------
    >>> fpr_at_tpr([0.1, 0.2, 0.3, 0.4], [0.25, 0.9])
    0.5
    """
    least = check_share("tpr", tpr)
    from sklearn import metrics

    truth, scores = _pooled(in_scores, out_scores)
    false_rate, true_rate, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
    return float(false_rate[np.argmax(true_rate >= least)])


def _pooled(
    in_scores: ArrayLike, out_scores: ArrayLike
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Return truth (True: out of distribution) and scores of both samples together."""
    inside = as_scores("in_scores", in_scores).cpu().numpy()
    outside = as_scores("out_scores", out_scores).cpu().numpy()
    truth = np.arange(len(inside) + len(outside)) >= len(inside)
    return truth, np.concatenate([inside, outside])


def r_auroc(uncertainty: ArrayLike, correct: ArrayLike) -> float:
    """Compute the AUROC of the uncertainty against "recall@1 is wrong" (URL, Kirchhof et al. 2023).

    Parameters
    ----------
    uncertainty : [Q]
        Uncertainty of each query; higher is less certain.
    correct : [Q]
        True, or 1, if the nearest neighbour of the query is right.

    Returns
    -------
    float
        Area under the ROC curve, in [0, 1]; 0.5 for uninformative scores. NaN with an
        ``UndefinedMetricWarning`` when all queries are right or all are wrong: there is nothing to
        distinguish.

    Raises
    ------
    InputError
        Mismatched lengths, or ``correct`` not 0 or 1.
    NonFiniteError
        NaN or infinite values.

    Examples
    --------
    >>> r_auroc([0.1, 0.4, 0.2, 0.9], [1, 1, 1, 0])
    1.0
    """
    scores = as_scores("uncertainty", uncertainty)
    rates = as_rates("correct", correct, scores, "uncertainty")
    right = rates == 1
    if bool((~right & (rates != 0)).any()):
        raise InputError("correct has values between 0 and 1: pass recall@1: 0 or 1 a query.")
    if bool(right.all()) or not bool(right.any()):
        state = "right" if bool(right.all()) else "wrong"
        message = f"all {len(right)} queries are {state}: R-AUROC is undefined, NaN."
        warnings.warn(message, UndefinedMetricWarning, stacklevel=callers_line())
        return float("nan")
    return auroc(scores[right], scores[~right])
