"""Floating-point precision: no autocast around a posterior, at least float32 in it.

An embedder may compute in half precision; its posterior does not.
"""

from __future__ import annotations

from contextlib import ContextDecorator, ExitStack

import torch
from torch import Tensor


class _FullPrecision(ContextDecorator):
    """Leave autocast for a while, on each device that is in it."""

    def _recreate_cm(self) -> _FullPrecision:
        return _FullPrecision()  # calls of a decorated function are nested, and run in threads

    def __enter__(self) -> None:
        self._stack = ExitStack()
        for device in ("cpu", "cuda"):
            if _in_autocast(device):  # which a query asks a dozen times
                self._stack.enter_context(torch.autocast(device, enabled=False))

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _in_autocast(device: str) -> bool:
    try:
        return torch.is_autocast_enabled(device)
    except TypeError:  # before PyTorch 2.4 this takes no argument
        return device == "cpu" or torch.cuda.is_available()


def full_precision() -> _FullPrecision:
    """Compute products of float32 tensors in float32, whatever autocast the caller is in.

    This is a context manager, and a decorator of functions.

    Examples
    --------
    >>> x = torch.ones(2, 2)
    >>> with torch.autocast("cpu", torch.bfloat16), full_precision():
    ...     (x @ x).dtype
    torch.float32
    """
    return _FullPrecision()


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return the tensor itself in float32 or float64, a float32 copy of anything shorter."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def without_rounding(values: Tensor, size: Tensor | float) -> Tensor:
    """Return values with 0 in the place of those that are rounding errors of ``size`` in float64.

    Products of such errors are subnormal in float32, where they take fifty times as long.

    Examples
    --------
    >>> without_rounding(torch.tensor([1.0, 1e-18]).double(), 1.0)
    tensor([1., 0.], dtype=torch.float64)
    """
    return values.masked_fill(values.abs() <= torch.finfo(torch.float64).eps * size, 0)
