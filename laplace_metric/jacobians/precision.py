"""Half-precision heads are differentiated in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor itself in float32 or float64; a float32 copy of anything shorter."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
