"""The probability that a query and its neighbour share a label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.search.match._calibrators import (
    CALIBRATORS,
    Array,
    Calibrator,
    Score,
    constant_score,
    fit_score,
    logistic,
)
from laplace_metric.search.match._hits import BY_DEFAULT, FEATURE_SETS, PORTABLE, PairFeatures

FOLDS = 5
CONSTANT = "none"
"""Feature set where fewer queries than folds have a match, or have anything else."""


@dataclass(frozen=True)
class MatchProbability:
    """``p = calibrator(score(features))``.

    Parameters
    ----------
    feature_set : "distance" | "posterior" | "labels" | "all" | "portable" | "none"
        The features that it looks at.
    score : Score
    calibrator : Calibrator
    losses : dict of "feature set, calibrator" to (log loss, standard error)
        Cross-validated, of every candidate; the smallest was chosen.
    """

    feature_set: str
    score: Score
    calibrator: Calibrator
    losses: dict[str, tuple[float, float]]

    def logit(self, features: PairFeatures) -> Float[Tensor, "Q k"]:
        """The score of each pair [Q, k], larger for a match; -inf where there is no neighbour."""
        return self.score(features.values).masked_fill(~features.exists, -torch.inf)

    def __call__(self, logit: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """[Q, k] in [0, 1] of such scores; 0 where there is no neighbour."""
        return self.calibrator(logit).masked_fill(logit == -torch.inf, 0.0)

    @property
    def chosen(self) -> str:
        """Name of the candidate with the smallest loss."""
        return f"{self.feature_set}, {self.calibrator.kind}"


def fit_match_probability(
    features: PairFeatures, match: Bool[Tensor, "Q k"], *, portable: bool = False
) -> MatchProbability:
    """Choose features and calibrator by cross-validated log loss, then fit them to everything.

    Pairs of one query stay in one fold. Where fewer than five queries have a match, or fewer than
    five have anything else, nothing can be learnt but how often: a constant, shrunk.

    Parameters
    ----------
    features : PairFeatures of [Q, k] pairs
    match : Tensor [Q, k]
        Whether their labels agree.
    portable : bool
        Leave the deviation of a distance out.

    Raises
    ------
    InputError
        For fewer than ten queries.
    """
    exists = features.exists
    if len(match) < 2 * FOLDS:
        raise InputError(f"{len(match)} queries to calibrate on: pass at least {2 * FOLDS}.")
    y = match[exists].double().cpu().numpy()
    kinds = (match & exists).any(1), (~match & exists).any(1)
    if min(int(kind.sum()) for kind in kinds) < FOLDS:
        share = (match & exists).double().sum(1) / exists.sum(1).clamp_min(1)
        score = constant_score(float(share.sum()), len(share))
        return MatchProbability(CONSTANT, score, logistic(y, y), {})
    groups = torch.arange(len(match))[:, None].expand_as(match)[exists.cpu()].numpy()
    x = features.values[exists].cpu().numpy()
    losses: dict[str, tuple[float, float]] = {}
    for feature_set in PORTABLE if portable else BY_DEFAULT:
        losses |= _cross_validated(x, y, groups, feature_set)
    feature_set, name = min(losses, key=lambda key: losses[key][0]).split(", ")
    return MatchProbability(feature_set, *_fitted(x, y, feature_set, name), losses)


def _fitted(x: Array, y: Array, feature_set: str, name: str) -> tuple[Score, Calibrator]:
    score = fit_score(x, y, FEATURE_SETS[feature_set])
    return score, CALIBRATORS[name](score(torch.from_numpy(x)).numpy(), y)


def _cross_validated(
    x: Array, y: Array, groups: npt.NDArray[np.int64], feature_set: str
) -> dict[str, tuple[float, float]]:
    """Mean log loss of held-out pairs and its standard error over queries, of each calibrator."""
    from sklearn.model_selection import GroupKFold

    loss = {name: np.empty(len(y)) for name in CALIBRATORS}
    for train, test in GroupKFold(FOLDS).split(x, y, groups):
        if y[train].min() == y[train].max():  # nothing to learn from these queries
            constant = constant_score(y[train].sum(), len(train))
            for held_out in loss.values():
                held_out[test] = _log_loss(
                    torch.sigmoid(constant(torch.from_numpy(x[test]))), y[test]
                )
            continue
        score = fit_score(x[train], y[train], FEATURE_SETS[feature_set])
        seen, new = (score(torch.from_numpy(x[rows])) for rows in (train, test))
        for name, held_out in loss.items():
            held_out[test] = _log_loss(CALIBRATORS[name](seen.numpy(), y[train])(new), y[test])
    queries = np.bincount(groups).clip(min=1)
    return {
        f"{feature_set}, {name}": (
            float(each.mean()),
            float((np.bincount(groups, each) / queries).std(ddof=1) / len(queries) ** 0.5),
        )
        for name, each in loss.items()
    }


def _log_loss(probability: Tensor, match: Array) -> Array:
    p = probability.numpy()
    return np.asarray(-np.log(np.where(match == 1, p, 1 - p).clip(min=1e-12)))
