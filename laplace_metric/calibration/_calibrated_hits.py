"""What a calibration says of the hits of any engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from laplace_metric._utils.display import Shown

Array = Any
"""A tensor where distances are one, else a NumPy array."""


@dataclass(frozen=True, repr=False)
class CalibratedHits(Shown):
    """Calibrated numbers of Q queries and their k neighbours, which a ``Rule`` decides about.

    Parameters
    ----------
    match_probability : [Q, k]
        That query and neighbour are a match; 0 where there is no neighbour.
    p_value : [Q]
        Of "the query has a match in the collection".
    unknown : [Q]
        ``p_value <= alpha``.
    label : [Q] or None
        The answer: the likeliest label of the neighbours. None, as the next, if it was calibrated
        with matches.
    label_probability : [Q] or None
        That it is the query's.
    ambiguity : [Q] or None
        Entropy in nats of the neighbours' vote; None without labels.
    nearest : [Q] or None
        Label of the nearest neighbour of each query; None without labels.
    alpha : float
        Share of queries with a match that may be called unknown.
    """

    match_probability: Array
    p_value: Array
    unknown: Array
    label: Array | None = None
    label_probability: Array | None = None
    ambiguity: Array | None = None
    nearest: Array | None = None
    alpha: float = 0.05
