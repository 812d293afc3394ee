"""Memory that a curvature needs in each structure, and the check that it is there before a fit."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from laplace_metric.errors import MemoryLimitError
from laplace_metric.heads._layout import Layout

SHARE = 0.5
"""Share of the free memory that a curvature may take."""


def required_bytes(structure: str, layouts: Sequence[Layout]) -> int:
    """Return the peak bytes of a curvature in float64: H, its summand, eigenvectors, workspace.

    Examples
    --------
    >>> required_bytes("full", [Layout(2, 2, bias=True)])  # 6 matrices of 6 x 6
    1728
    """
    n_parameters = sum(x.n_parameters for x in layouts)
    if structure == "full":
        return 8 * 6 * n_parameters**2
    vectors = 8 * 4 * n_parameters
    if structure == "diag":
        return vectors
    return vectors + sum(8 * 4 * (x.n_outputs**2 + x.n_columns**2) for x in layouts)


def available_bytes(device: torch.device) -> int:
    """Return the free memory of the device; on the CPU, what the system reports as available."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            free_memory = {line.split(":")[0]: line.split()[1] for line in lines}
        return 1024 * int(free_memory["MemAvailable"])
    except (OSError, KeyError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def check_memory(structure: str, layouts: Sequence[Layout], device: torch.device) -> None:
    """Raise ``MemoryLimitError`` if the curvature does not fit, with the structures that do."""
    limit = int(SHARE * available_bytes(device))
    needed = required_bytes(structure, layouts)
    if needed <= limit:
        return
    smaller = [
        f"{name!r} ({required_bytes(name, layouts):,} bytes)"
        for name in ("kron", "diag")
        if name != structure and required_bytes(name, layouts) <= limit
    ]
    raise MemoryLimitError(
        f"structure={structure!r} of {sum(x.n_parameters for x in layouts):,} parameters needs "
        f"{needed:,} bytes, and half of what is free is {limit:,}. "
        f"Structures that fit: {', '.join(smaller) or 'none; use a smaller head'}."
    )
