"""The probability that a query and its neighbour share a label."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric.calibration._calibrators import (
    CALIBRATORS,
    WIDE,
    WIDTH,
    Array,
    Calibrator,
    Score,
    fit_score,
)
from laplace_metric.calibration._hits import BY_DEFAULT, FEATURE_SETS, PORTABLE, PairFeatures
from laplace_metric.errors import FewQueriesWarning, InputError

FOLDS = 5
ENOUGH = 50
"""Queries of each kind, with a match and with anything else, from which on the prior is wide and a
step function is tried: of fewer, its ties lose the order of the distance (Niculescu-Mizil & Caruana
2005 want a thousand points)."""


@dataclass(frozen=True)
class MatchProbability:
    """``p = calibrator(score(features))``.

    Parameters
    ----------
    feature_set : "distance" | "posterior" | "labels" | "all" | "portable"
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
    five have anything else, only the distance and the rank count, by a slope that is mostly the
    prior's (``_calibrators``).

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

    Warns
    -----
    FewQueriesWarning
        If the queries hardly determine how the probability falls with the distance.
    """
    exists = features.exists
    if len(match) < 2 * FOLDS:
        raise InputError(f"{len(match)} queries to calibrate on: pass at least {2 * FOLDS}.")
    y = match[exists].double().cpu().numpy()
    groups = torch.arange(len(match))[:, None].expand_as(match)[exists.cpu()].numpy()
    x = features.values[exists].cpu().numpy()
    kinds = int((match & exists).any(1).sum()), int((~match & exists).any(1).sum())
    sets: tuple[str, ...] = PORTABLE if portable else BY_DEFAULT
    width = WIDE if min(kinds) >= ENOUGH else WIDTH
    names = [name for name in CALIBRATORS if name != "isotonic" or min(kinds) >= ENOUGH]
    if min(kinds) < FOLDS:
        _warn_of_few(kinds, len(match))
        sets, names = ("distance",), ["logistic"]
    losses: dict[str, tuple[float, float]] = {}
    for feature_set in sets:
        losses |= _cross_validated(x, y, groups, feature_set, names, width)
    # rounded: losses that differ by an optimiser's rounding are equal, the first is simplest
    feature_set, name = min(losses, key=lambda key: round(losses[key][0], 9)).split(", ")
    return MatchProbability(feature_set, *_fitted(x, y, groups, feature_set, name, width), losses)


def _warn_of_few(kinds: tuple[int, int], n: int) -> None:
    what = "a match" if kinds[0] < kinds[1] else "anything else"
    warnings.warn(
        f"{min(kinds)} of the {n} queries that fit the match probability have {what} among their "
        f"neighbours, too few to determine how it falls with the distance: at least {FOLDS} are "
        "needed. It falls with the distance as it does on other data. Calibrate on more queries.",
        FewQueriesWarning,
        stacklevel=2,
    )


def _fitted(
    x: Array,
    y: Array,
    groups: npt.NDArray[np.int64],
    feature_set: str,
    name: str,
    width: float = WIDTH,
) -> tuple[Score, Calibrator]:
    weight = 1 / np.bincount(groups)[groups]
    score = fit_score(x, y, weight, FEATURE_SETS[feature_set], width)
    return score, CALIBRATORS[name](score(torch.from_numpy(x)).numpy(), y, weight)


def _cross_validated(
    x: Array,
    y: Array,
    groups: npt.NDArray[np.int64],
    feature_set: str,
    names: list[str],
    width: float,
) -> dict[str, tuple[float, float]]:
    """Mean log loss of held-out pairs and its standard error over queries, of each calibrator."""
    from sklearn.model_selection import GroupKFold

    queries = np.bincount(groups).clip(min=1)
    weight = 1 / queries[groups]
    loss = {name: np.empty(len(y)) for name in names}
    for train, test in GroupKFold(FOLDS).split(x, y, groups):
        score = fit_score(x[train], y[train], weight[train], FEATURE_SETS[feature_set], width)
        seen, new = (score(torch.from_numpy(x[rows])) for rows in (train, test))
        for name, held_out in loss.items():
            calibrator = CALIBRATORS[name](seen.numpy(), y[train], weight[train])
            held_out[test] = _log_loss(calibrator(new), y[test])
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
