"""Floating-point precision: no autocast around a posterior, at least float32 in it.

An embedder may compute in half precision; its posterior does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute products of float32 tensors in float32, whatever autocast the caller is in.

    This is a context manager, and a decorator of functions.

    Examples
    --------
    >>> x = torch.ones(2, 2)
    >>> with torch.autocast("cpu", torch.bfloat16), full_precision():
    ...     (x @ x).dtype
    torch.float32
    """
    with ExitStack() as stack:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return the tensor itself in float32 or float64, a float32 copy of anything shorter."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
