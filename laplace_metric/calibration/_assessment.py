"""Calibrated numbers of the hits of a search, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from laplace_metric._utils.display import Shown


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
    """

    logit: Float[np.ndarray, "Q depth"]
    match_probability: Float[np.ndarray, "Q depth"]
    p_value: Float[np.ndarray, " Q"]
    carrier: Int[np.ndarray, " Q"] | None = None
    label_probability: Float[np.ndarray, " Q"] | None = None
    calibration: str | None = None
