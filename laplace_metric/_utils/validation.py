"""Checks shared by every metric: each names the argument, what was given and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplace_metric.errors import InputError, LabelError, NonFiniteError

ArrayLike = Tensor | npt.NDArray[Any] | Sequence[Any]
"""What every metric takes: a tensor, a numpy array or a (nested) sequence of numbers."""


def as_tensor(name: str, values: ArrayLike) -> Tensor:
    """A detached real tensor sharing the values' device; Python floats become float64."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise InputError(f"{name} is complex ({values.dtype}). Give real numbers.")
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} has dtype {array.dtype}. Give a tensor or array of real numbers.")
    if array.dtype.kind == "f":
        kept = array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.dtype("f8")
    else:
        kept = np.dtype("i8")
    return torch.from_numpy(np.array(array, dtype=kept))


def require_finite(name: str, values: Tensor) -> None:
    """Raise ``NonFiniteError`` with the count and the first row of NaN or infinity."""
    if not values.is_floating_point():
        return
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise NonFiniteError(
            f"{name} holds {int(bad.sum())} NaN or infinite values, the first at index {first}. "
            "Remove or repair those rows first."
        )


def require_shape(name: str, values: Tensor, shape: str) -> None:
    """Raise unless ``values`` has the dimensions of ``shape``, like "[Q, Z]", and some rows."""
    dimensions = shape.count(",") + 1
    if values.ndim != dimensions:
        raise InputError(f"{name} has shape {tuple(values.shape)}. Give it the shape {shape}.")
    if values.numel() == 0:
        raise InputError(f"{name} is empty, shape {tuple(values.shape)}. Give at least one row.")


def require_length(name: str, values: Tensor, length: int, other: str) -> None:
    """Raise unless ``values`` has one entry for each row of ``other``."""
    if values.shape[0] != length:
        raise InputError(
            f"{name} has length {values.shape[0]} but {other} has {length}. Give one for each row."
        )


def as_points(name: str, values: ArrayLike, shape: str = "[Q, Z]") -> Tensor:
    """Finite embeddings of the named shape; integers become float64, half precision float32."""
    points = as_tensor(name, values)
    require_shape(name, points, shape)
    if not points.is_floating_point():
        points = points.double()
    elif points.element_size() < 4:
        points = points.float()
    require_finite(name, points)
    return points


def as_labels(name: str, values: ArrayLike | None, points: Tensor, other: str) -> Tensor:
    """Integer labels [Q], int64 on the device of ``points``, one for each of its rows."""
    if values is None:
        raise LabelError(f"{name} is missing. Give one integer label for each row of {other}.")
    if not isinstance(values, Tensor) and np.asarray(values).dtype.kind not in "biu":
        raise LabelError(
            f"{name} has dtype {np.asarray(values).dtype}. Give integer labels; "
            "numpy.unique(labels, return_inverse=True)[1] turns any others into integers."
        )
    labels = as_tensor(name, values)
    if labels.is_floating_point():
        raise LabelError(f"{name} has dtype {labels.dtype}. Give integer labels.")
    if labels.ndim != 1 or labels.shape[0] != points.shape[-2]:
        raise LabelError(
            f"{name} has shape {tuple(labels.shape)} but {other} has {points.shape[-2]} rows. "
            "Give one label for each row."
        )
    return labels.to(device=points.device, dtype=torch.int64)


def as_vector(name: str, values: ArrayLike) -> Tensor:
    """Finite, non-empty scores [Q] in their own floating-point type; others become float64."""
    vector = as_tensor(name, values)
    require_shape(name, vector, "[Q]")
    require_finite(name, vector)
    return vector if vector.is_floating_point() else vector.double()


def as_scores(name: str, values: ArrayLike) -> Tensor:
    """Finite, non-empty scores [Q] in float64."""
    return as_vector(name, values).double()


def as_rates(name: str, values: ArrayLike, like: Tensor, other: str) -> Tensor:
    """Scores in [0, 1], float64 on the device of ``like``, one for each of its rows."""
    rates = as_tensor(name, values)
    require_shape(name, rates, "[Q]")
    require_length(name, rates, like.shape[0], other)
    if rates.is_floating_point() and bool(rates.isnan().any()):
        raise NonFiniteError(
            f"{name} holds {int(rates.isnan().sum())} NaN (queries that a retrieval metric "
            f"excluded?). Keep the rows where it is not NaN, in {name} and in {other}."
        )
    if bool((rates < 0).any()) or bool((rates > 1).any()):
        low, high = float(rates.min()), float(rates.max())
        raise InputError(f"{name} lies in [{low:g}, {high:g}]. Give values in [0, 1].")
    return rates.to(device=like.device, dtype=torch.float64)


def require_count(name: str, value: int, least: int = 1) -> int:
    """An integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name}={value!r} is not valid. Give an integer of at least {least}.")
    return int(value)


def require_share(name: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    if not isinstance(value, Real) or not 0.0 < value < 1.0:
        raise InputError(f"{name}={value!r} is not valid. Give a number between 0 and 1.")
    return float(value)


def check_positive(name: str, value: float) -> float:
    """A finite number > 0, or ``InputError`` naming the argument."""
    if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise InputError(f"{name}={value!r}: pass a finite number > 0.")
    return float(value)


def check_count(name: str, value: int) -> None:
    """Raise ``InputError`` unless ``value`` is a whole number >= 1."""
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{name}={value!r}: pass a whole number >= 1.")
