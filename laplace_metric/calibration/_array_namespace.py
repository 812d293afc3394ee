"""Types of the arrays of this room, and the module whose functions take them.

Formulas take NumPy arrays, or the tensors that an exported graph is traced from. Sums run over the
last axis, so that a query does not depend on the others of its batch.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Judged = npt.NDArray[np.int8]
"""Relevance: 1, 0, -1 where it was not judged, and ``NO_HIT`` where there is no hit."""


def namespace(array: Any) -> Any:
    """Return the module of an array's functions: NumPy, or torch where it is a tensor."""
    return np if isinstance(array, (np.ndarray, np.generic)) else sys.modules["torch"]
