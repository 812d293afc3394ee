"""Find labels that are missing: None, NaN, ``pandas.NA``, NaT."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric.errors import LabelError
from laplace_metric.inputs._arrays import plain
from laplace_metric.inputs._rows_in_errors import named_rows


def missing_rows(labels: Any) -> list[int]:
    """Return the rows whose label is None, not a number or not a time.

    Examples
    --------
    >>> missing_rows(["cat", None, "dog", float("nan")]), missing_rows(np.arange(3))
    ([1, 3], [])
    """
    labels = plain(labels)
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "Of":
        labels = labels.tolist()
    if not isinstance(labels, (list, tuple)):
        return []
    kinds = ("NoneType", "NAType", "NaTType")  # the last two of pandas
    return [
        row
        for row, label in enumerate(labels)
        if type(label).__name__ in kinds
        or (isinstance(label, float) and math.isnan(label))
        or (isinstance(label, np.datetime64) and np.isnat(label))
    ]


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
