"""Checks of arguments: each names the argument, says what it is and what to pass instead.

``as_*`` turn arrays into checked tensors, ``check_*`` check single numbers and return them. What
needs torch imports it when it is called: ``laplace_metric.calibration`` does without.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from laplace_metric.errors import InputError, LabelError, NonFiniteError, UnknownNameError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    ArrayLike: TypeAlias = Tensor | npt.NDArray[Any] | Sequence[Any]
else:
    ArrayLike = Any
"""What every metric takes: a tensor, a numpy array or a (nested) sequence of numbers."""
Floats = npt.NDArray[np.float64]
DTYPES = {
    *("float16", "bfloat16", "float32", "float64", "bool"),
    *("uint8", "int8", "int16", "int32", "int64"),
}
"""Types of numbers that every operation of torch knows."""
LONGEST = 60
"""Most characters of a value in an error."""


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Return whether ``value`` is a tensor, without importing torch: before that, none is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def shown_argument(name: str, value: Any) -> str:
    """Describe an argument at the start of an error; an array by its type and shape.

    Examples
    --------
    >>> shown_argument("n", 0.5), shown_argument("n", np.zeros((300, 2)))
    ('n=0.5', 'n is a ndarray [300, 2]')
    """
    if (is_tensor(value) or isinstance(value, np.ndarray)) and value.ndim:
        return f"{name} is a {type(value).__name__} {list(value.shape)}"
    text = repr(value)
    return f"{name}={text}" if len(text) <= LONGEST else f"{name}={text[:LONGEST]}..."


def as_floats(name: str, values: ArrayLike | float) -> Floats:
    """Return real numbers in float64, of a tensor of any device, too; no copy if possible."""
    if is_tensor(values):
        numbers: Floats = check_dense(name, values).detach().cpu().double().resolve_neg().numpy()
        return numbers
    return _real_array(name, values).astype(np.float64, copy=False)


def as_tensor(name: str, values: ArrayLike | float) -> Tensor:
    """Return a detached real tensor sharing the values' device; Python floats become float64."""
    import torch

    if isinstance(values, torch.Tensor):
        return check_dense(name, values).detach()
    array = _real_array(name, values)
    if array.dtype.kind == "f":
        dtype = array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.dtype("f8")
    else:
        dtype = np.dtype("i8")
    if array.dtype.kind == "u" and array.size and int(array.max()) > LARGEST:
        raise InputError(f"{name} holds {int(array.max())}: pass whole numbers up to 2^63 - 1.")
    return torch.from_numpy(np.array(array, dtype=dtype))


def _real_array(name: str, values: Any) -> npt.NDArray[Any]:
    array = as_array(name, values)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} has dtype {array.dtype}: pass a tensor or array of real numbers.")
    return array


def as_array(name: str, values: Any) -> npt.NDArray[Any]:
    """Return what NumPy makes of a sequence; raise ``InputError`` if it makes nothing of it.

    A column with one vector a cell, as of a data frame, is stacked.

    Raises
    ------
    InputError
        For a sparse matrix, masked entries, and vectors of unequal shape, too.
    """
    check_not_sparse(name, values)
    if hasattr(values, "uncertainty") and hasattr(values, "mean"):
        raise InputError(f"{name} is an {type(values).__name__}: pass its vectors, .mean.")
    try:
        array: npt.NDArray[Any] = stacked_cells(name, np.asarray(values))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name} cannot be read as an array: {error}.") from error
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InputError(f"{name} is masked: remove the masked entries, or fill them.")
    return array


def check_not_sparse(name: str, values: Any) -> None:
    """Raise ``InputError`` for a sparse matrix of SciPy, which NumPy reads as one object."""
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise InputError(
            f"{name} is a sparse matrix ({type(values).__name__}): pass a dense array, "
            "matrix.toarray(), or fewer dimensions (sklearn.decomposition.TruncatedSVD)."
        )


def stacked_cells(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of objects that holds one vector a cell, [N] or [N, 1], as [N, D].

    Numbers that are objects, as ``Decimal`` of a database or the integers of a mixed frame, become
    int64 where all are whole, else float64.

    Raises
    ------
    InputError
        For vectors of unequal shape, cells without one, and vectors next to other columns.
    """
    if array.dtype != object or not array.size:
        return array
    if not any(_is_vector(cell) for cell in array.flat):
        return _numbers(array)
    if array.ndim == 2 and array.shape[1] > 1:
        raise InputError(
            f"{name} has vectors in cells of {array.shape[1]} columns: pass the column of vectors "
            "alone."
        )
    cells = [np.asarray(cell) for cell in array.ravel()]
    other = [row for row, cell in enumerate(cells) if cell.shape != cells[0].shape]
    if other or not cells[0].ndim:
        row = other[0] if other else 0
        raise InputError(
            f"{name} is a column of vectors of unequal shape: {cells[0].shape} in row 0, "
            f"{cells[row].shape} in row {row} ({len(other)} rows differ). Pass vectors of one "
            "length, numpy.stack(column)."
        )
    return _numbers(np.stack(cells))


def _numbers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of objects that are all numbers as one of numbers; any other as it is."""
    if array.dtype != object or any(isinstance(x, (bool, np.bool_)) for x in array.flat):
        return array
    if not all(isinstance(x, (Real, Decimal)) for x in array.flat):
        return array
    whole = all(math.isfinite(x) and x == int(x) for x in array.flat)
    try:
        return array.astype(np.int64 if whole else np.float64)
    except OverflowError:
        return array


def _is_vector(cell: Any) -> bool:
    return is_tensor(cell) or isinstance(cell, (list, tuple, np.ndarray))


def check_dense(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor, or raise ``InputError`` unless it holds real numbers in plain memory."""
    if tensor.is_complex():
        raise InputError(f"{name} is complex ({tensor.dtype}): pass real numbers.")
    kinds = {
        "nested": tensor.is_nested,
        "quantized": tensor.is_quantized,
        "meta": tensor.is_meta,
        (layout := str(tensor.layout).removeprefix("torch.")): layout != "strided",
    }
    if kind := next((kind for kind, is_so in kinds.items() if is_so), None):
        raise InputError(f"{name} is a {kind} tensor: pass a dense one, of plain numbers.")
    if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        raise InputError(f"{name} has dtype {tensor.dtype}: pass float32, float64 or int64.")
    return tensor


def check_floating(name: str, value: Any, shape: str = "") -> Tensor:
    """Return the tensor, or raise ``InputError`` unless it is a dense floating one of a shape."""
    if not is_tensor(value):
        raise InputError(f"{name} must be a floating tensor {shape}, not {type(value).__name__}.")
    check_dense(name, value)
    if not value.is_floating_point():
        raise InputError(f"{name} must be a floating tensor {shape}, not {value.dtype}.")
    if shape and "..." not in shape and value.ndim != shape.count(",") + 1:
        raise InputError(f"{name} has shape {tuple(value.shape)}: pass {shape}.")
    return value


def check_broadcast(**shapes: Sequence[int]) -> torch.Size:
    """Return the common shape, or raise ``InputError`` if there is none."""
    import torch

    try:  # as torch.broadcast_shapes, whose first call imports sympy for a second
        return torch.Size(np.broadcast_shapes(*map(tuple, shapes.values())))
    except ValueError as error:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise InputError(f"shapes do not fit: {listed}.") from error


def as_shape(name: str, shape: Any) -> torch.Size:
    """Return a sequence of counts from 0 on, or raise ``InputError``."""
    import torch

    if not isinstance(shape, Sequence) or isinstance(shape, (str, bytes)):
        raise InputError(
            f"{shown_argument(name, shape)}: pass a tuple of whole numbers, such as (5,)."
        )
    return torch.Size([check_count(name, number, 0) for number in shape])


def as_path(name: str, value: Any) -> Path:
    """Return a path, of which ``~`` is the home folder; raise ``InputError`` for what is none."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        plain = value is None or isinstance(value, (str, bytes, int, float))
        given = f"={value!r}" if plain else f" is a {type(value).__name__}"
        raise InputError(f"{name}{given}: pass a path, as a string or pathlib.Path.")
    return Path(os.path.expanduser(text))  # which leaves the ~name of nobody as it is


def check_name(argument: str, value: Any, choices: Sequence[str] | Mapping[str, Any]) -> str:
    """Return the name itself, or raise ``UnknownNameError`` unless it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise UnknownNameError(argument, value, tuple(choices))
    return value


def refuse_reloaded(name: str, value: Any) -> None:
    """Refuse an object of this package whose module was loaded again since.

    ``%autoreload`` and ``importlib.reload`` make a second class of the same name, of which objects
    of the first one are no instances.

    Raises
    ------
    InputError
        With what to do.
    """
    for kind in type(value).__mro__:
        if kind.__module__.partition(".")[0] != "laplace_metric":
            continue
        now = getattr(sys.modules.get(kind.__module__), kind.__qualname__, kind)
        if now is not kind:
            raise InputError(
                f"{name} is a {kind.__name__} from before {kind.__module__} was reloaded (as by "
                "autoreload): make it again, or restart Python."
            )


def check_function(name: str, value: Any, *arguments: str) -> None:
    """Raise ``InputError`` unless it can be called with so many arguments."""
    listed = ", ".join(arguments)
    if not callable(value):
        raise InputError(f"{name} is a {type(value).__name__}: pass a function of ({listed}).")
    try:
        signature(value).bind(*arguments)
    except TypeError as error:
        raise InputError(f"{name} is not a function of ({listed}): {error}.") from error
    except ValueError:  # one of C, which does not say what it takes
        return


def as_points(name: str, values: ArrayLike, shape: str = "[Q, Z]") -> Tensor:
    """Return finite embeddings of this shape; integers become float64, half precision float32."""
    points = as_tensor(name, values)
    _check_shape(name, points, shape)
    if not points.is_floating_point():
        points = points.double()
    elif points.element_size() < 4:
        points = points.float()
    _check_finite(name, points)
    return points


def as_labels(name: str, values: ArrayLike | None, points: Tensor, other: str) -> Tensor:
    """Return integer labels [Q], int64 on the device of ``points``, one for each of its rows."""
    if values is None:
        raise LabelError(f"{name} is missing: pass one integer label for each row of {other}.")
    array = None if is_tensor(values) else as_array(name, values)
    if array is not None and array.dtype.kind not in "biu":
        raise LabelError(
            f"{name} has dtype {array.dtype}: pass integer labels; "
            "numpy.unique(labels, return_inverse=True)[1] turns any others into integers."
        )
    labels = as_tensor(name, values)
    if labels.is_floating_point():
        raise LabelError(f"{name} has dtype {labels.dtype}: pass integer labels.")
    if labels.ndim != 1 or labels.shape[0] != points.shape[-2]:
        raise LabelError(
            f"{name} has shape {tuple(labels.shape)} but {other} has {points.shape[-2]} rows: "
            "pass one label for each row."
        )
    return labels.to(device=points.device).long()


def as_vector(name: str, values: ArrayLike) -> Tensor:
    """Return finite, non-empty scores [Q] in their own floating-point type, others in float64."""
    vector = as_tensor(name, values)
    _check_shape(name, vector, "[Q]")
    _check_finite(name, vector)
    return vector if vector.is_floating_point() else vector.double()


def as_scores(name: str, values: ArrayLike) -> Tensor:
    """Return finite, non-empty scores [Q] in float64."""
    return as_vector(name, values).double()


def as_rates(name: str, values: ArrayLike, like: Tensor, other: str) -> Tensor:
    """Return scores in [0, 1], float64 on the device of ``like``, one for each of its rows."""
    rates = as_tensor(name, values)
    _check_shape(name, rates, "[Q]")
    if len(rates) != len(like):
        raise InputError(
            f"{name} has length {len(rates)} but {other} has {len(like)}: pass one for each row."
        )
    if rates.is_floating_point() and bool(rates.isnan().any()):
        raise NonFiniteError(
            f"{name} holds {int(rates.isnan().sum())} NaN (queries that a retrieval metric "
            f"excluded?). Keep the rows where it is not NaN, in {name} and in {other}."
        )
    if bool((rates < 0).any()) or bool((rates > 1).any()):
        low, high = float(rates.min()), float(rates.max())
        raise InputError(f"{name} lies in [{low:g}, {high:g}]: pass values in [0, 1].")
    return rates.to(device=like.device).double()


LARGEST = 2**63 - 1


def check_count(name: str, value: int, least: int = 1) -> int:
    """Return an integer of at least ``least``, or raise ``InputError``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{shown_argument(name, value)}: pass an integer of at least {least}.")
    if value > LARGEST:
        raise InputError(f"{shown_argument(name, value)}: pass an integer up to 2^63 - 1.")
    return int(value)


def check_real(name: str, value: float, meaning: str = "finite number") -> float:
    """Return a finite number, of Python or NumPy and no bool, or raise ``InputError``."""
    try:
        number = (
            math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
        )
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{shown_argument(name, value)}: pass a {meaning}.")
    return number


def check_positive(name: str, value: float) -> float:
    """Return a finite number above 0, or raise ``InputError``."""
    number = check_real(name, value, "finite number > 0")
    if number <= 0:
        raise InputError(f"{name}={value!r}: pass a finite number > 0.")
    return number


def check_share(name: str, value: float) -> float:
    """Return a number strictly between 0 and 1, or raise ``InputError``."""
    number = check_real(name, value, "number between 0 and 1")
    if not 0.0 < number < 1.0:
        raise InputError(f"{name}={value!r}: pass a number between 0 and 1.")
    return number


def check_fraction(name: str, value: float) -> float:
    """Return a number in [0, 1), or raise ``InputError``."""
    number = check_real(name, value, "number in [0, 1)")
    if not 0.0 <= number < 1.0:
        raise InputError(f"{name}={value!r}: pass a number in [0, 1), such as 0.2 for 20%.")
    return number


def _check_finite(name: str, values: Tensor) -> None:
    """Raise ``NonFiniteError`` with the count and the first row of NaN or infinity."""
    if not values.is_floating_point():
        return
    bad = ~values.isfinite()
    if bool(bad.any()):
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise NonFiniteError(
            f"{name} holds {int(bad.sum())} NaN or infinite values, the first at index {first}. "
            "Remove or repair those rows first."
        )


def _check_shape(name: str, values: Tensor, shape: str) -> None:
    """Raise unless ``values`` has the dimensions of ``shape``, like "[Q, Z]", and some rows."""
    dimensions = shape.count(",") + 1
    if values.ndim != dimensions:
        raise InputError(f"{name} has shape {tuple(values.shape)}: pass the shape {shape}.")
    if values.numel() == 0:
        raise InputError(f"{name} is empty, shape {tuple(values.shape)}: pass at least one row.")
