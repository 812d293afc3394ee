"""Find labels that are there but are no classes: marks of noise, a class for each item."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Int

from laplace_metric.errors import LabelError, LaplaceMetricWarning, callers_line
from laplace_metric.inputs._rows_in_errors import named_rows

NOISE = -1
"""scikit-learn's label of noise (DBSCAN, HDBSCAN, OPTICS) and of rows without a label."""
FEW_CLASSES = 2
"""Classes next to -1 from which on it is a mark; with one other class, it is one of two classes."""
FEWEST_TO_DIFFER = 3
"""Labels that say something if all of them differ."""
IS_A_CLASS = "if -1 is a class, give it a name of its own, such as that of labels.astype(str)."
IS_NO_CLASS = "if these are queries without a match, give them another label that no item has."


def check_noise(
    name: str,
    labels: npt.NDArray[Any],
    otherwise: str = IS_A_CLASS,
    known: npt.NDArray[Any] | None = None,
) -> None:
    """Refuse -1 next to two classes or more of which none is negative, in labels [N].

    Names pass. -1 and one other number are two classes; -1 among other negative numbers is a
    class. ``otherwise`` ends the message. Where all are -1, the classes are those that are
    ``known``, if any.

    Raises
    ------
    LabelError
        Names the rows, and what to do where -1 is a class.

    Examples
    --------
    >>> check_noise("labels", np.array([-1, 1, 1, -1]))
    """
    if labels.dtype.kind not in "if" or not len(labels) or labels.min() != NOISE:
        return
    others = np.unique(labels)[1:]
    if not len(others) and known is not None and known.dtype.kind in "if":
        others = np.unique(known)
    if len(others) < FEW_CLASSES or others[0] < 0:
        return
    rows = np.flatnonzero(labels == NOISE).tolist()
    raise LabelError(
        f"{name} is -1 in {named_rows(rows, len(labels))}: scikit-learn marks "
        "noise and rows without a label by -1, which is no class. Leave these rows out; "
        f"{otherwise}"
    )


def warn_if_all_differ(labels: Int[np.ndarray, " N"]) -> None:
    """Warn if no two of the items of a fit have one class, as where ids are passed as labels.

    Warns
    -----
    LaplaceMetricWarning
        If there are ``FEWEST_TO_DIFFER`` items or more.
    """
    n = len(labels)
    if n < FEWEST_TO_DIFFER or len(np.unique(labels[:n])) < n:
        return
    warnings.warn(
        f"all {n:,} labels differ, so that no two items are of one class and the fit has no "
        "positive pair: are these ids or row numbers? Pass the class of each item.",
        LaplaceMetricWarning,
        stacklevel=callers_line(),
    )
