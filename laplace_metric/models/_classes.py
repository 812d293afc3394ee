"""Labels that are there but are no classes: missing ones, marks of noise, a class for each item."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric.errors import LabelError, LaplaceMetricWarning, callers_line
from laplace_metric.models._reading import missing_rows, plain
from laplace_metric.models._rows import named_rows

NOISE = -1
"""scikit-learn's label of noise (DBSCAN, HDBSCAN, OPTICS) and of rows without a label."""
FEW_CLASSES = 2
"""Classes next to -1 from which on it is a mark; with one other class, it is one of two classes."""
FEWEST_TO_DIFFER = 3
"""Labels that say something if all of them differ."""


def have_gaps(labels: Any) -> bool:
    """Return whether labels are names or whole numbers [N], but for some that are missing.

    Examples
    --------
    >>> have_gaps(["cat", None]), have_gaps([1.0, float("nan")]), have_gaps([0.5, float("nan")])
    (True, True, False)
    """
    if isinstance(labels, Tensor):
        if not _has_floats(labels) or labels.ndim != 1:
            return False
        labels = labels.detach().cpu().double().numpy()
    missing, labels = set(missing_rows(labels)), plain(labels)
    if not missing or np.ndim(labels) != 1:
        return False
    there = [label for row, label in enumerate(labels) if row not in missing]
    return all(isinstance(label, str) for label in there) or all(
        isinstance(label, (int, float, np.integer, np.floating)) and float(label).is_integer()
        for label in there
    )


def _has_floats(labels: Tensor) -> bool:
    """Return whether a tensor holds floating numbers in plain memory, which may be NaN."""
    plain_memory = labels.layout == torch.strided and not (labels.is_nested or labels.is_meta)
    return labels.is_floating_point() and plain_memory


def check_missing(name: str, labels: Any) -> None:
    """Refuse labels of which some are None, NaN, ``pandas.NA`` or NaT.

    Raises
    ------
    LabelError
        Names the rows.
    """
    if isinstance(labels, Tensor):
        if not _has_floats(labels):
            return
        labels = labels.detach().cpu().double().numpy()
    if missing := missing_rows(labels):
        raise LabelError(
            f"{name} is missing in {named_rows(missing, len(labels))}: "
            "leave these items out, or name their class. Pass one whole number or one string "
            "per item, none missing."
        )


IS_A_CLASS = "if -1 is a class, give it a name of its own, such as that of labels.astype(str)."
IS_NO_CLASS = "if these are queries without a match, give them another label that no item has."


def check_noise(name: str, labels: npt.NDArray[Any], otherwise: str = IS_A_CLASS) -> None:
    """Refuse -1 next to two classes or more of which none is negative, in labels [N].

    Names pass. -1 and one other number are two classes; -1 among other negative numbers is a
    class. ``otherwise`` ends the message.

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
