"""Types of the arrays of this room."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Judged = npt.NDArray[np.int8]
"""Relevance: 1, 0, -1 where it was not judged, and ``NO_HIT`` where there is no hit."""
