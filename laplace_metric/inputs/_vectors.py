"""Read embeddings that are arrays already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import as_tensor, check_dense
from laplace_metric.errors import EmptyLoaderError, InputError, NonFiniteError
from laplace_metric.inputs._inputs import Inputs
from laplace_metric.inputs._no_data import (
    check_holds_data,
    check_is_no_mapping,
    check_pair_order,
)
from laplace_metric.inputs._rows_in_errors import bad_rows, rows_before
from laplace_metric.inputs._texts import gathered_texts


def read_vectors(name: str, values: Any, size: int | None = None) -> Float[Tensor, "N D"]:
    """Return vectors [N, D] as a finite tensor of float32 or float64.

    Parameters
    ----------
    name : str
        Name of the argument, for errors.
    values : array [N, D], or Inputs
        NumPy array, list, iterator of rows, data frame, column of vectors or tensor, through which
        gradients flow; or batches of these.
    size : int or None
        D. One row [D] of this size is returned as [1, D]. None: any size.

    Raises
    ------
    InputError
        For no numbers, another shape or another size.
    NonFiniteError
        For NaN or infinity; it names the rows.

    Examples
    --------
    >>> read_vectors("embeddings", [[0.5, 1.0]]).dtype
    torch.float64
    """
    if isinstance(values, Inputs):
        return _joined(name, values, size)
    check_holds_data(name, values)
    check_is_no_mapping(name, values)
    if isinstance(values, Tensor):
        tensor = check_dense(name, values)  # through which gradients still flow
    else:
        check_pair_order(f"a batch of {name}", values)
        given = gathered_texts(name, values)
        check_no_texts(name, given, size)
        tensor = as_tensor(name, list(given) if isinstance(given, Iterator) else given)
    shape = tuple(tensor.shape)
    if shape == (size,):
        tensor = tensor[None]
    elif len(shape) != 2 and (size is None or len(shape) != 1):
        images = ", the embeddings of these images" if len(shape) == 4 else ""
        raise InputError(f"{name} have shape {shape}: pass [N, {size or 'D'}]{images}.")
    elif len(shape) == 1 and not tensor.is_floating_point():
        raise InputError(
            f"these {name} are {len(tensor)} whole numbers, as labels are: pass vectors "
            f"[N, {size}] first, and labels behind them."
        )
    elif size not in (None, shape[-1]):
        raise InputError(
            f"these {name} have {shape[-1]} numbers each, and {size} were fitted, so an "
            f"index holds {size} too: pass [N, {size}], from the same encoder."
        )
    vectors = tensor if tensor.dtype == torch.float64 else tensor.float()
    if not bool(torch.isfinite(vectors).all()):
        named = bad_rows((~torch.isfinite(vectors)).any(1))
        raise NonFiniteError(f"{name} hold NaN or infinity in {named}: leave these rows out.")
    return vectors


def check_no_texts(name: str, values: Any, size: int | None = None) -> None:
    """Refuse texts where vectors are asked for.

    Parameters
    ----------
    name : str
        Name of the argument, for errors.
    values : any
        Value of the argument. Only a text, a list, a tuple, an array and a series are looked into.
    size : int or None
        Numbers of a vector. None, the default: any size.

    Raises
    ------
    InputError
        It says how texts become vectors.

    Examples
    --------
    >>> check_no_texts("queries", ["hello"], 64)
    Traceback (most recent call last):
    laplace_metric.errors.InputError: queries: 'hello' is a text, and vectors [N, 64] are needed. \
Encode texts first, items and queries by the same model, and pass what it gives.
    """
    rows = getattr(values, "iloc", values)  # of a series, whose first row need not be named 0
    if isinstance(values, str):
        rows = [values]
    elif rows is values and not isinstance(values, (list, tuple, np.ndarray)):
        return
    first = rows[0] if getattr(values, "shape", True) and len(values) else None
    if isinstance(first, str):
        raise InputError(
            f"{name}: {str(first)!r:.40} is a text, and vectors [N, {size or 'D'}] are needed. "
            "Encode texts first, items and queries by the same model, and pass what it gives."
        )


def _joined(name: str, inputs: Inputs, size: int | None) -> Float[Tensor, "N D"]:
    """Return the vectors of all batches, one behind the other."""
    parts, n_read = list[Tensor](), 0
    for batch in inputs:
        with rows_before(n_read):
            parts.append(read_vectors(name, batch.inputs, size))
        n_read += len(parts[-1])
    if not parts:
        raise EmptyLoaderError(f"{name} hold nothing: pass at least one vector.")
    return torch.cat(parts)
