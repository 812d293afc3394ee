"""Places of a list of hits that hold no hit: infinity, and what engines write instead of it.

A list of k places may have fewer hits. Infinite scores mark the other places, and so does what
FAISS writes there: the largest float32, 3.4028235e38, with the sign of the worst score, and the id
-1. The same number converted, by ``sqrt(d)``, ``1 - d / 2`` or ``sqrt(2 - 2 s)``, is no hit either.
(The largest float64 is beyond. The largest float16, 65504, may be a score, and stays one; FAISS's
number is infinite in float16.)

Functions take NumPy arrays, or the tensors that an exported graph is traced from.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

PADDING = 3.4e38
"""Scores of this size and beyond are no hits."""
LARGEST = 3.4028234663852886e38
"""The largest float32, with which FAISS fills a list."""
CONVERTED = (LARGEST**0.5, (2 * LARGEST) ** 0.5, LARGEST / 2)
"""The same number as a root, as a chord of a cosine, and as a cosine of a squared distance."""
ROUNDING = 1e-6
"""Relative error of a converted number in float32."""
NO_HIT = -2
"""Judgement of a place without a hit: neither relevant (1), nor irrelevant (0), nor a hit that
was not judged (-1)."""


def is_padding(scores: Any) -> Any:
    """Return where scores or distances say that there is no hit, in an array of their shape.

    NaN is not padding: it is an error where it comes from a caller, and stays NaN in a graph.

    Examples
    --------
    >>> import numpy as np
    >>> is_padding(np.array([0.9, -np.inf, 3.4028235e38, 1.8446743e19, 3.3e38]))
    array([False,  True,  True,  True, False])
    """
    size = abs(scores)
    found = size >= PADDING
    for number in CONVERTED:
        found = found | ((size > number * (1 - ROUNDING)) & (size < number * (1 + ROUNDING)))
    return found


def is_no_id(item: Any) -> bool:
    """Return whether an id says that there is no hit: -1, as a number or a text, None or NaN."""
    if item is None or item == "-1":
        return True
    return isinstance(item, Real) and not isinstance(item, bool) and (item == -1 or item != item)
