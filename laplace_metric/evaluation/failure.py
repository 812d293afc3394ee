"""R-AUROC: does the uncertainty tell the queries whose nearest neighbour is wrong?"""

from __future__ import annotations

import warnings

from laplace_metric.errors import InputError, UndefinedMetricWarning
from laplace_metric.evaluation.ood import auroc
from laplace_metric.validation import ArrayLike, as_rates, as_scores


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
