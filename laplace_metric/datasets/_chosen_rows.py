"""Rows of a data set: those that a user names, and batches of them."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from os import PathLike
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import as_array, check_count, check_dense
from laplace_metric.errors import InputError, RowError


def chosen_rows(name: str, rows: Any, n: int) -> Int64[Tensor, " rows"]:
    """Return rows 0 .. n - 1 as whole numbers; negative ones count from the end.

    Parameters
    ----------
    name : str
        Name of the argument, for errors.
    rows : whole numbers [m], a slice, or a mask [n]
        Rows that the user asked for.
    n : int
        Number of rows that there are.

    Raises
    ------
    InputError
        If ``rows`` is neither a mask, a slice nor whole numbers.
    RowError
        If a row does not exist, or a mask has another length than n.

    Examples
    --------
    >>> chosen_rows("rows", [True, False, True], 3), chosen_rows("rows", slice(1, None), 3)
    (tensor([0, 2]), tensor([1, 2]))
    """
    if isinstance(rows, slice):
        return torch.tensor(range(n)[rows], dtype=torch.int64)
    if isinstance(rows, Tensor):
        rows = check_dense(name, rows).detach().cpu().numpy()
    if rows is None or isinstance(rows, (Number, np.generic, PathLike)):
        raise InputError(
            f"{name}={rows!r:.60}: pass whole numbers [n], such as [3], a slice, or a mask [{n}]."
        )
    rows = [rows] if isinstance(rows, str) else rows
    array = as_array(name, rows if hasattr(rows, "__len__") else list(rows))
    if array.dtype.kind in "UO" and array.size and isinstance(array.flat[0], str):
        raise InputError(
            f"{name} holds a name, {str(array.flat[0])!r:.60}: pass a mask [{n}], such as "
            "numpy.isin(images.labels, names) or, of paths in a folder, numpy.isin(images.ids, "
            "paths)."
        )
    if array.ndim != 1 or (array.dtype.kind not in "biu" and len(array)):
        raise InputError(
            f"{name} has shape {list(array.shape)} and dtype {array.dtype}: pass whole numbers "
            "[n], a slice, or a mask."
        )
    try:
        return torch.from_numpy(np.arange(n)[array if len(array) else []])
    except IndexError as error:
        raise RowError(f"{name}: there are {n} rows, 0 to {n - 1}, but {error}.") from error


def row_loader(
    n: int,
    read: Callable[[list[int]], Any],
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: Seed = None,
    workers: int = 0,
) -> DataLoader[Any]:
    """Return batches ``read(rows)``, in order, or in a new order each pass.

    Raises
    ------
    InputError
        If the batch size is below 1, or workers below 0.
    """
    check_count("batch_size", batch_size)
    check_count("workers", workers, 0)
    source, rows = as_generator(seed), range(n)
    return DataLoader(
        rows,  # type: ignore[arg-type]
        batch_size,
        sampler=RandomSampler(rows, generator=source) if shuffle else SequentialSampler(rows),
        collate_fn=read,
        num_workers=workers,
        generator=torch.Generator(),  # of the workers' seeds: the global one stays as it is
    )
