"""Features of scored hits -> the probability of a match.

A logistic score whose weights of values are at least 0, then the calibrator with the smallest
cross-validated log loss (``_match_probability``). The first hit of a list and those behind it are
two populations, with a model each: one for both ranks the first hits by what tells the others
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from laplace_metric.calibration._array_namespace import Array, Judged
from laplace_metric.calibration.probability._features import PairFeatures
from laplace_metric.calibration.probability._logistic_score import WIDTH, Prior
from laplace_metric.calibration.probability._match_probability import (
    MatchProbability,
    fit_probability,
)
from laplace_metric.calibration.scores._score_features import LIST
from laplace_metric.errors import FileFormatError, InputError

FIRST, BEHIND = slice(1), slice(1, None)
"""Places of a list."""
RISING = 1.5
"""Prior mean of the standardised weight of the first scorer's value."""
ALMOST_FLAT = 100.0
"""Standard deviation of the weights where queries are many; separable ones have a solution then."""
VALUE, VALUES, IN_LIST, EVIDENCE = "value", "values", "list", "evidence"
"""Sets of features: the first scorer's value; all values; all of a list; further columns."""


@dataclass(frozen=True)
class ListModel:
    """Model of the first hit of a list, and model of the hits behind it."""

    first: MatchProbability
    behind: MatchProbability

    def check_saved(self) -> None:
        """Refuse bounds of a file: scores count without end."""
        for model in (self.first, self.behind):
            for name in ("low", "cap"):
                if np.isfinite(getattr(model.score, name)).any():
                    raise FileFormatError(f"score/{name} is finite: scores count without end")

    def __call__(self, features: PairFeatures) -> Array:
        """Return the probability of each hit [Q, k]; 0 where there is none."""
        parts = (self.first, FIRST), (self.behind, BEHIND)
        return np.column_stack([model(model.logit(features.at(at))) for model, at in parts])

    @classmethod
    def fit(
        cls,
        features: PairFeatures,
        judged: Judged,
        scorers: int,
        *,
        like: ListModel | None = None,
    ) -> ListModel:
        """Fit to the hits [Q, k] of queries; ``like`` is a fit to more queries, or None.

        Hits behind the first have its model, where nothing can be learnt from themselves.

        Raises
        ------
        InputError
            If no first hit is judged, or all have one score.
        """
        sets = score_sets(scorers, features.values.shape[-1], judged.shape[1])

        def fitted(places: slice, same: MatchProbability | None) -> MatchProbability:
            there = np.zeros_like(features.exists)
            there[:, places] = features.exists[:, places]
            value = features.values[..., 0][there & (judged >= 0)]
            if len(value) and np.ptp(value) == 0:
                raise InputError(f"scores are all {value[0]:g}: nothing can be learnt from them.")
            return fit_probability(
                replace(features, exists=there), judged, sets, tuple(sets), like=same
            )

        first = fitted(FIRST, None if like is None else like.first)
        try:
            return cls(first, fitted(BEHIND, None if like is None else like.behind))
        except InputError:  # one hit a query, hits that nobody judged, or one score
            return cls(first, first)


def score_sets(scorers: int, n_features: int, k: int) -> Mapping[str, Prior]:
    """Return the prior of each set of features of scores, the simplest first.

    Hits of one kind alone have a probability all the same, by the prior of the score: it is (n +
    1/2) / (n + 1) at the mean of n hits that are all relevant, and rises with the score.

    Parameters
    ----------
    scorers, n_features, k : int
        Number of scorers, of features and of hits of a query.
    """
    values, lists = range(0, len(LIST) * scorers, len(LIST)), len(LIST) * scorers + 1
    columns = {VALUE: [0]}
    if scorers > 1:
        columns[VALUES] = [*values]
    if k > 1:
        columns[IN_LIST] = [*range(lists)]
    if n_features > lists:
        columns[EVIDENCE] = [*range(n_features)]
    return {
        name: Prior(
            used,
            centre=np.array([RISING if column == 0 else 0.0 for column in used]),
            least=np.array([0.0 if column in values else -np.inf for column in used]),
            most=np.full(len(used), np.inf),
            narrow=WIDTH,
            wide=ALMOST_FLAT,
        )
        for name, used in columns.items()
    }
