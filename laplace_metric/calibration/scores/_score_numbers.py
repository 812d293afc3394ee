"""Arguments of ``calibrate_scores`` as numbers, or an error that names what was given instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.validation import as_array, as_floats, is_tensor
from laplace_metric.errors import InputError

ENDS = {"scores": "-inf (inf of distances)"}
"""What stands behind the last hit of a query in the lists of an argument; -1 in others."""


def numbers(name: str, values: Any, wanted: str | None = None) -> npt.NDArray[np.float64]:
    """Return real numbers in float64.

    Parameters
    ----------
    name : str
        Name of the argument, for the error.
    values : array, tensor, or nested lists
        Numbers as the caller passed them.
    wanted : str, optional
        Advice of the error for text. None, the default: general advice.

    Raises
    ------
    InputError
        For lists of unequal length, a sparse matrix, None, and other types.

    Examples
    --------
    >>> numbers("scores", [[0.9, 0.4], [0.7]])
    Traceback (most recent call last):
    ...
    laplace_metric.errors.InputError: scores are lists of 1 to 2 hits: make them equally long, \
with -inf (inf of distances) behind the last hit of a query.
    """
    if is_tensor(values):
        return as_floats(name, values)
    if hasattr(values, "tocsr"):
        raise InputError(
            f"{name} is sparse ({type(values).__name__}), where what is not stored would count as "
            "0: pass an array of the first k hits of each query, [Q, k]."
        )
    if isinstance(values, Mapping):
        raise InputError(
            f"{name} is a {type(values).__name__} by {next(iter(values), 'query')!r:.40}: pass an "
            "array [Q, k], the first hit first, and the ids of the hits as items=."
        )
    if str(getattr(values, "dtype", "")) == "object":
        _check_equal_lengths(name, [*np.asarray(values).flat])
    elif isinstance(values, (list, tuple)):
        _check_equal_lengths(name, values)
    array = as_array(name, values)
    if array.dtype == object and not array.ndim:
        raise InputError(
            f"{name} is a {type(values).__name__}: pass an array or a list of numbers."
        )
    if array.dtype == object:
        array = _of_objects(name, array)
    if wanted is not None and array.dtype.kind in "USO":
        text = next((x for x in array.flat if isinstance(x, str)), "objects")
        raise InputError(f"{name} holds {str(text)!r}: {wanted}")
    return as_floats(name, array)


def are_booleans(values: Any) -> bool:
    """Return whether an array, or the first of nested lists, holds booleans."""
    while isinstance(values, (list, tuple)) and values:
        values = values[0]
    return str(getattr(values, "dtype", type(values).__name__)).endswith("bool")


def _of_objects(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the numbers of an array of objects; the array itself if it holds others."""
    cells = [*array.flat]
    missing = next((i for i, cell in enumerate(cells) if cell is None), None)
    if missing is not None:
        row = missing * len(array) // len(cells)
        raise InputError(f"{name} holds None in row {row}: pass {ENDS.get(name, '-1')} there.")
    are_real = all(isinstance(x, (Real, Decimal)) for x in cells)
    return array.astype(np.float64) if are_real else array


def _check_equal_lengths(name: str, rows: Sequence[Any]) -> None:
    sizes = {len(row) for row in rows if _is_list(row)}
    if len(sizes) > 1:
        raise InputError(
            f"{name} are lists of {min(sizes)} to {max(sizes)} hits: make them equally long, with "
            f"{ENDS.get(name, '-1')} behind the last hit of a query."
        )


def _is_list(value: Any) -> bool:
    """Return whether it is a list, a tuple or an array with at least one axis."""
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0
