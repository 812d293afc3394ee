"""What a user names rows by: numbers, a slice, a mask."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from laplace_metric._utils.validation import as_tensor
from laplace_metric.errors import InputError, RowError


def named_rows(name: str, rows: Any, n: int) -> Int64[Tensor, " rows"]:
    """Rows 0 .. n - 1 as whole numbers; negative ones count from the end.

    Raises
    ------
    InputError
        For a mask of another length than n, and what is neither mask, slice nor whole numbers.
    RowError
        For a row that does not exist.

    Examples
    --------
    >>> named_rows("rows", [True, False, True], 3), named_rows("rows", slice(1, None), 3)
    (tensor([0, 2]), tensor([1, 2]))
    """
    if isinstance(rows, slice):
        return torch.tensor(range(n)[rows], dtype=torch.int64)
    values = rows if hasattr(rows, "__len__") else list(rows)
    index = as_tensor(name, values) if len(values) else torch.empty(0, dtype=torch.int64)
    if _is_mask(values):
        if index.shape != (n,):
            raise InputError(f"{name} is a mask of shape {list(index.shape)}; it must be [{n}].")
        return index.nonzero().flatten().cpu()
    if index.ndim != 1 or index.is_floating_point():
        raise InputError(
            f"{name} has shape {list(index.shape)} and dtype {index.dtype}: pass whole numbers "
            "[n], a slice, or a mask."
        )
    index = index.long().cpu()
    beyond = index[(index < -n) | (index >= n)]
    if len(beyond):
        raise RowError(f"{name} holds {int(beyond[0])}: there are {n} rows, 0 to {n - 1}.")
    return torch.where(index < 0, index + n, index)


def _is_mask(values: Any) -> bool:
    dtype = str(getattr(values, "dtype", ""))
    if dtype:
        return dtype.endswith("bool")
    return len(values) > 0 and all(isinstance(value, bool) for value in values)
