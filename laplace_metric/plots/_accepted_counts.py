"""Numbers of accepted and of right answers at every threshold of a score."""

from __future__ import annotations

import numpy as np

from laplace_metric._utils.validation import Floats


def accepted_counts(scores: Floats, right: Floats) -> tuple[Floats, Floats, Floats]:
    """Return different scores, rising, the queries with one or less, and the right of these."""
    order = np.argsort(scores, kind="stable")
    last = np.diff(scores[order], append=np.inf) != 0  # ties are answered together
    accepted = np.arange(1, len(scores) + 1, dtype=np.float64)
    return scores[order][last], accepted[last], np.cumsum(right[order])[last]
