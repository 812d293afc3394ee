"""Read arrays, data frames and rows of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from laplace_metric._utils.validation import check_not_sparse, stacked_cells


def plain(values: Any) -> Any:
    """A data frame or a series as an array; everything else as it is.

    Examples
    --------
    >>> import pandas
    >>> plain(pandas.Series(["a", "b"])), plain([1, 2])
    (array(['a', 'b'], dtype=object), [1, 2])
    """
    if isinstance(values, (Tensor, np.ndarray)) or not hasattr(values, "to_numpy"):
        return values
    array = values.to_numpy()
    return array.astype(object) if array.dtype.kind == "T" else array


def dense(name: str, values: Any) -> Any:
    """As ``plain``, with a column of vectors stacked to [N, D].

    Raises
    ------
    InputError
        For a sparse matrix, and vectors of unequal shape.
    """
    check_not_sparse(name, values)
    values = plain(values)
    return stacked_cells(name, values) if isinstance(values, np.ndarray) else values


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


def is_one_item(inputs: Any) -> bool:
    """Return whether inputs are one row of numbers [D].

    Examples
    --------
    >>> is_one_item(torch.ones(3)), is_one_item([0.5, 1.0]), is_one_item(torch.ones(1, 3))
    (True, True, False)
    """
    inputs = plain(inputs)
    if isinstance(inputs, (Tensor, np.ndarray)):
        return inputs.ndim == 1
    return is_rows(inputs) and not isinstance(inputs[0], list)


def as_batch(item: Any) -> Any:
    """One row of numbers [D] as [1, D]."""
    item = plain(item)
    return [item] if isinstance(item, list) else item[None]


def is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)
