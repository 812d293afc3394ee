"""A calibrator as numbers of a file, checked as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from laplace_metric.calibration._calibrators import Calibrator
from laplace_metric.errors import FileFormatError
from laplace_metric.io import checked_array


def calibrator_of(kind: str, numbers: Any) -> Calibrator:
    """Return a calibrator whose probabilities lie in [0, 1].

    Raises
    ------
    FileFormatError
        For numbers that are not those of its kind.
    """
    width = {"logistic": 0, "beta": 3}.get(kind)
    checked_array("calibrator", numbers, [2, width], dtype="float64")
    if kind == "isotonic":
        knots, steps = numbers
        if not len(knots) or (np.diff(numbers) < 0).any():
            raise FileFormatError("calibrator has no knots in ascending order")
        checked_array("probabilities of the calibrator", steps, [None], least=0.0, most=1.0)
    return Calibrator(kind, numbers)
