"""Formulas that take NumPy arrays, or the tensors that an exported graph is traced from.

Sums run over the last axis, so that a query does not depend on the others of its batch.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def namespace(array: Any) -> Any:
    """Return the module of an array's functions: NumPy, or torch where it is a tensor."""
    return np if isinstance(array, (np.ndarray, np.generic)) else sys.modules["torch"]
