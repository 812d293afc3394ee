"""Directions and lengths of what enters a head."""

from __future__ import annotations

import torch
from torch import Tensor


def directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return h / |h| [n, D] and log |h| [n] in float64.

    Rows of zeros stay zeros, with a log length of -infinity.
    """
    h, longest = features, None
    if features.dtype == torch.float64:  # whose squares may overflow, as those of float32 do not
        longest = h.abs().amax(1, keepdim=True)
        h = h / longest.where(longest > 0, 1)
    lengths = torch.linalg.vector_norm(h, dim=1, dtype=torch.float64)
    u, logs = h / lengths.where(lengths > 0, 1)[:, None], lengths.log()
    return u, logs if longest is None else logs + longest[:, 0].log()
