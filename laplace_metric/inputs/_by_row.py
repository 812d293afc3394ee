"""Count inputs that are held in memory, and take some of their rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int
from torch import Tensor

from laplace_metric._utils.validation import check_dense
from laplace_metric.errors import InputError
from laplace_metric.inputs._batches import ModelInput


def count_inputs(name: str, inputs: ModelInput) -> int:
    """Return the number of inputs: rows of an array, length of a list or of each part of a mapping.

    Raises
    ------
    InputError
        If they have none.

    Examples
    --------
    >>> count_inputs("texts", ["a", "b"])
    2
    """
    if isinstance(inputs, Mapping):
        lengths = {key: count_inputs(f"{name}[{key!r}]", value) for key, value in inputs.items()}
        if len(set(lengths.values())) != 1:
            raise InputError(f"{name} has parts of several lengths: {lengths}.")
        return next(iter(lengths.values()))
    if isinstance(inputs, Tensor):
        check_dense(name, inputs)
    sized = isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim > 0
    if not sized and not isinstance(inputs, (list, tuple)):
        raise InputError(f"{name} is a {type(inputs).__name__}: pass an array or a list of inputs.")
    if not len(inputs):
        raise InputError(f"{name} is empty: pass at least one.")
    return len(inputs)


def take_inputs(inputs: ModelInput, rows: Int[Tensor, " B"]) -> ModelInput:
    """Return some rows of inputs, of the same kind.

    Examples
    --------
    >>> import torch
    >>> take_inputs(["a", "b", "c"], torch.tensor([2, 0]))
    ['c', 'a']
    """
    if isinstance(inputs, Mapping):
        return {key: take_inputs(value, rows) for key, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return [inputs[row] for row in rows.tolist()]
    return inputs[rows.numpy() if isinstance(inputs, np.ndarray) else rows]
