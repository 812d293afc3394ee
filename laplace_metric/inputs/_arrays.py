"""Read arrays, data frames and rows of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric._utils.validation import (
    DTYPES,
    as_array,
    as_tensor,
    check_not_sparse,
    stacked_cells,
)

UNORDERED = (str, bytes, Mapping, AbstractSet)


def plain(values: Any) -> Any:
    """Return a data frame, a series or a column of Arrow as an array; everything else as it is.

    A column of a Hugging Face data set, which reads its rows when it is asked, is read.

    Examples
    --------
    >>> import pandas
    >>> plain(pandas.Series(["a", "b"])), plain([1, 2])
    (array(['a', 'b'], dtype=object), [1, 2])
    """
    if isinstance(values, (Tensor, np.ndarray, list, tuple)):
        return values
    package = type(values).__module__.partition(".")[0]
    if package == "datasets" and isinstance(values, Sequence):
        return plain(values[:])
    if not hasattr(values, "to_numpy"):
        return values
    arrow = package == "pyarrow" and hasattr(values, "buffers")  # and not one of several chunks
    array = values.to_numpy(zero_copy_only=False) if arrow else values.to_numpy()
    return array.astype(object) if array.dtype.kind == "T" else array


def read_list(values: Any) -> Any:
    """Return a list, or an array of numbers; None for what has no order or is no list at all.

    Examples
    --------
    >>> import pandas
    >>> read_list(pandas.Series(["a", "b"])), read_list({1, 2})
    (['a', 'b'], None)
    """
    values = plain(values)
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray):
        return values if values.ndim and values.dtype != object else values.tolist()
    if isinstance(values, UNORDERED) or not hasattr(values, "__len__"):
        return None
    return values.tolist() if hasattr(values, "tolist") else list(values)


def read_numbers(name: str, values: Any) -> Any:
    """Return frames and rows of numbers as an array, a column of vectors stacked to [N, D].

    Everything else is returned as it is.

    Raises
    ------
    InputError
        For a sparse matrix, and vectors of unequal shape.

    Examples
    --------
    >>> read_numbers("x", [[1, 2], [3, 4]]).shape, read_numbers("x", ["a text"])
    ((2, 2), ['a text'])
    """
    check_not_sparse(name, values)
    values = plain(values)
    if isinstance(values, np.ndarray):
        return stacked_cells(name, values)
    return as_array(name, values) if is_rows(values) else values


def is_rows(values: Any) -> bool:
    """Return whether a list holds rows of numbers rather than inputs of a model.

    Examples
    --------
    >>> is_rows([[0.1, 0.2], [0.3, 0.4]]), is_rows([torch.ones(2), torch.ones(2)]), is_rows(["a"])
    (True, False, False)
    """
    if not isinstance(values, list) or not values:
        return False
    if all(isinstance(row, list) and row for row in values):
        return all(is_number(x) for row in values for x in row)
    return all(is_number(x) for x in values)


def is_number(x: Any) -> bool:
    """Return whether ``x`` is a number of Python, NumPy or a database, and not a bool."""
    kinds = (int, float, Decimal, np.integer, np.floating)
    return isinstance(x, kinds) and not isinstance(x, bool)


def tensor_of_rows(name: str, array: Any) -> Any:
    """Return some rows as a tensor of their type; few at a time, the array may be a memory map.

    Rows of float64, the type that NumPy and pandas choose, stay an array: the model's weights
    decide which type they get (``models.call_model``).
    """
    if not isinstance(array, np.ndarray):
        return array
    if array.dtype == np.float64:
        return np.array(array)
    rows = as_tensor(name, array)
    same = getattr(torch, array.dtype.name, None)  # whole numbers have become int64
    return rows.to(same) if array.dtype.name in DTYPES else rows
