"""What a monitor is given: finite numbers, the same quantities every time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from laplace_metric.errors import InputError
from laplace_metric.validation import ArrayLike, as_scores

Array = npt.NDArray[np.float64]

LEAST = 30
"""Values of a reference and of a window, below which a test can hardly tell anything."""


def checked_reference(reference: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Each quantity [n] as float64, n at least ``LEAST``."""
    if not isinstance(reference, Mapping) or not reference:
        raise InputError("reference is empty or no mapping: pass {name: values [n]}.")
    found = {str(name): _numbers(f"reference[{name!r}]", x) for name, x in reference.items()}
    for name, values in found.items():
        if len(values) < LEAST:
            raise InputError(f"reference[{name!r}] has {len(values)} values: pass {LEAST} or more.")
    return found


def checked_values(values: Mapping[str, ArrayLike], names: tuple[str, ...]) -> dict[str, Array]:
    """Each of ``names`` [m] as float64, in that order."""
    if not isinstance(values, Mapping) or set(values) != set(names):
        given = sorted(map(str, values)) if isinstance(values, Mapping) else type(values)
        raise InputError(
            f"values holds {given}, the reference {sorted(names)}: pass a mapping with the same "
            "names."
        )
    columns = {name: _numbers(f"values[{name!r}]", values[name]) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"values has the lengths {lengths}: pass one number for each query.")
    return columns


def _numbers(name: str, values: ArrayLike) -> Array:
    found: Array = as_scores(name, values).cpu().numpy()
    return found
