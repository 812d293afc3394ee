"""Calibrated numbers of the hits of a search: as arrays, and as answers of any engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from laplace_metric._utils.display import Shown
from laplace_metric.calibration.labels._label_shares import LabelShares


@dataclass(frozen=True, repr=False)
class Assessment(Shown):
    """Calibrated numbers of the hits of Q queries.

    Parameters
    ----------
    logit : [Q, depth]
        Scores of the pairs.
    match_probability : [Q, depth]
        Probability that query and neighbour are a match.
    p_value : [Q]
        Conformal p-value of "the query has a match in the index".
    carrier : [Q] or None
        Place of the neighbour that carries the likeliest label; None if no labels calibrated the
        index.
    label_probability : [Q] or None
        Probability that this label is the query's; None if no labels calibrated the index.
    calibration : str or None
        Identity of the calibration. None, the default: not known.
    shares : LabelShares or None
        Probabilities of all labels of the neighbours. None, the default, as for
        ``label_probability``.
    """

    logit: Float[np.ndarray, "Q depth"]
    match_probability: Float[np.ndarray, "Q depth"]
    p_value: Float[np.ndarray, " Q"]
    carrier: Int[np.ndarray, " Q"] | None = None
    label_probability: Float[np.ndarray, " Q"] | None = None
    calibration: str | None = None
    shares: LabelShares | None = None


Array = Any
"""A tensor where distances are one, else a NumPy array."""


@dataclass(frozen=True, repr=False)
class CalibratedHits(Shown):
    """Calibrated numbers of Q queries and their k neighbours, which a ``Rule`` decides about.

    Parameters
    ----------
    match_probability : [Q, k]
        Probability that query and neighbour are a match; 0 where there is no neighbour.
    p_value : [Q]
        Conformal p-value of "the query has a match in the collection"; small for open-set queries.
    unknown : [Q]
        True for a query without a match in the collection: ``p_value <= alpha``.
    label : [Q] or None
        Answer: the likeliest label of the neighbours. None, the default, if matches calibrated it.
    label_probability : [Q] or None
        Probability that ``label`` is the query's. None, the default, if matches calibrated it.
    ambiguity : [Q] or None
        Entropy of the neighbours' vote, in nats. None, the default, without labels.
    nearest : [Q] or None
        Label of the nearest neighbour of each query. None, the default, without labels.
    alpha : float in (0, 1)
        Share of queries with a match that may be called unknown. Default: 0.05.
    calibration : str or None
        Identity of the calibration, which a rule compares with its own. None, the default: not
        known.
    """

    match_probability: Array
    p_value: Array
    unknown: Array
    label: Array | None = None
    label_probability: Array | None = None
    ambiguity: Array | None = None
    nearest: Array | None = None
    alpha: float = 0.05
    calibration: str | None = None
