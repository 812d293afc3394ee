"""Calibration queries as arrays of a file, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from laplace_metric.calibration._calibration_queries import CalibrationQueries
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.errors import FileFormatError
from laplace_metric.io import Fields, Kind, Part, checked_array

QUERIES = Kind("queries", "saved calibration queries", 1)
ARRAYS = (
    "probability",
    "relevant",
    "mated",
    "total",
    "grid",
    "abstained",
    "unseen",
    "unseen_class",
    "score",
    "group",
)
OPTIONAL = ("score", "group")
"""Arrays that are not written where they are empty."""
TYPES = {"relevant": "int8", "mated": "int8", "abstained": "bool"}
"""Of arrays that are not float64."""


def query_arrays(queries: CalibrationQueries) -> dict[str, Any]:
    """Return the arrays of calibration queries, in the types that are stored."""
    types = {name: TYPES.get(name, "float64") for name in ARRAYS}
    arrays = {name: np.asarray(getattr(queries, name), types[name]) for name in ARRAYS}
    return {name: array for name, array in arrays.items() if array.size or name not in OPTIONAL}


def queries_of_arrays(
    arrays: Mapping[str, Any], k: int | None, *, cross_fitted: bool, where: str
) -> CalibrationQueries:
    """Restore calibration queries.

    Parameters
    ----------
    arrays : dict of name to array
        Arrays that ``query_arrays`` returned.
    k : int or None
        Number of hits of each query; None: any number.
    cross_fitted : bool
        True if each query was tested by another fit than the one that answers.
    where : str
        Name of the part, for errors.

    Raises
    ------
    FileFormatError
        If an array is missing, of another type or shape, or has values out of its range.
    """

    def checked(name: str, *shape: int | None, least: float = 0.0, most: float = np.inf) -> Any:
        array, dtype = arrays.get(name), TYPES.get(name, "float64")
        if dtype == "bool":
            return checked_array(f"{where}/{name}", array, shape, dtype=dtype)
        return checked_array(f"{where}/{name}", array, shape, dtype=dtype, least=least, most=most)

    mated = checked("mated", None, least=-1, most=1)
    n, unseen = len(mated), checked("unseen", None, most=1)
    if not n:
        raise FileFormatError(f"{where}/mated is empty")
    probability = checked("probability", n, k, most=1)
    relevant = checked("relevant", *probability.shape, least=NO_HIT, most=1)
    if not probability.shape[1]:
        raise FileFormatError(f"{where}/probability has no column")
    if probability[relevant == NO_HIT].any():
        raise FileFormatError(f"{where}/probability is not 0 where there is no hit")
    return CalibrationQueries(
        probability,
        relevant,
        mated,
        checked("total", n),
        checked("grid", None, most=1),
        checked("abstained", n),
        cross_fitted,
        unseen,
        checked("unseen_class", len(unseen)),
        _optional(arrays, "score", n, where),
        _optional(arrays, "group", n, where),
    )


def _optional(arrays: Mapping[str, Any], name: str, n: int, where: str) -> Any:
    """Return an array [n] that may be empty, and is missing in older files."""
    array = arrays.get(name, np.empty(0))
    shape = (n,) if np.size(array) else (0,)
    return checked_array(f"{where}/{name}", array, shape, dtype="float64")


def queries_part(queries: CalibrationQueries) -> Part:
    """Return calibration queries as a part of a file."""
    return Part(QUERIES, {"cross_fitted": queries.cross_fitted}, query_arrays(queries))


def queries_of(part: Part) -> CalibrationQueries:
    """Restore what ``queries_part`` returned.

    Raises
    ------
    FileFormatError
        As ``queries_of_arrays``.
    """
    cross_fitted = Fields(part.content, "queries").flag("cross_fitted")
    return queries_of_arrays(part.arrays, None, cross_fitted=cross_fitted, where="queries")
