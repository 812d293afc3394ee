"""The probability that a query and its neighbour share a label."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.matching.evidence import KINDS, Evidence
from laplace_metric.matching.maps import MAPS, WEAK, Array, Map

FOLDS = 5
FLOOR = 1e-3
"""Of the median of a spread: below, a pair counts as that certain."""


@dataclass(frozen=True)
class MatchProbability:
    """``p = map(w . evidence + c)``.

    Parameters
    ----------
    kind : "distance" | "all"
        The evidence that it looks at.
    weights : Tensor [F]
        w, and ``offset`` c.
    floor : Tensor [3]
        Of the evidence.
    map : Map
    losses : dict of "evidence, map" to (log loss, standard error)
        Cross-validated, of every candidate; the smallest was chosen.
    """

    kind: str
    weights: Tensor
    offset: float
    floor: Tensor
    map: Map
    losses: dict[str, tuple[float, float]]

    def logit(self, evidence: Evidence) -> Tensor:
        """The score of each pair [Q, k], larger for a match; -inf where there is no neighbour."""
        seen = evidence.seen_as(self.kind, self.floor)
        score = seen @ self.weights.to(seen) + self.offset
        return score.masked_fill(~evidence.there, -torch.inf)

    def __call__(self, logit: Tensor) -> Tensor:
        """[Q, k] in [0, 1] of such scores; 0 where there is no neighbour."""
        return self.map(logit).masked_fill(logit == -torch.inf, 0.0)

    @property
    def chosen(self) -> str:
        """Name of the candidate with the smallest loss."""
        return f"{self.kind}, {self.map.kind}"


def fit_match_probability(evidence: Evidence, match: Tensor) -> MatchProbability:
    """Choose evidence and map by cross-validated log loss, then fit them to everything.

    Pairs of one query stay in one fold.

    Parameters
    ----------
    evidence : Evidence of [Q, k] pairs
    match : Tensor [Q, k]
        Whether their labels agree.

    Raises
    ------
    InputError
        For fewer than ten queries, or if all pairs match, or none.
    """
    there = evidence.there
    floor = _floor(evidence)
    y = match[there].double().cpu().numpy()
    groups = torch.arange(len(match))[:, None].expand_as(match)[there.cpu()].numpy()
    _check(len(match), y)
    seen = {kind: evidence.seen_as(kind, floor)[there].cpu().numpy() for kind in KINDS}
    losses = {
        f"{kind}, {name}": _cross_validated(seen[kind], y, groups, name)
        for kind, name in product(KINDS, MAPS)
    }
    kind, name = min(losses, key=lambda key: losses[key][0]).split(", ")
    weights, offset = _score(seen[kind], y)
    fitted = MAPS[name](seen[kind] @ weights + offset, y)
    return MatchProbability(kind, torch.from_numpy(weights), offset, floor, fitted, losses)


def _floor(evidence: Evidence) -> Tensor:
    values = evidence.values[evidence.there]
    middle = values.median(0).values
    floor = middle + float(np.log(FLOOR))
    floor[0] = 0.0  # a distance needs none
    return floor.nan_to_num(neginf=0.0).cpu()


def _check(n_queries: int, match: Array) -> None:
    if n_queries < 2 * FOLDS:
        raise InputError(f"{n_queries} queries to calibrate on: pass at least {2 * FOLDS}.")
    if match.min() == match.max():
        which = "all" if match[0] else "none"
        raise InputError(
            f"{which} of the {len(match)} pairs match: a probability needs both kinds. Pass more "
            "queries, or a larger k."
        )


def _cross_validated(
    x: Array, y: Array, groups: npt.NDArray[np.int64], name: str
) -> tuple[float, float]:
    """Mean log loss of held-out pairs and its standard error over queries."""
    from sklearn.model_selection import GroupKFold

    loss = np.empty(len(y))
    for train, test in GroupKFold(FOLDS).split(x, y, groups):
        if y[train].min() == y[train].max():
            loss[test] = np.inf
            continue
        weights, offset = _score(x[train], y[train])
        fitted = MAPS[name](x[train] @ weights + offset, y[train])
        p = fitted(torch.from_numpy(x[test] @ weights + offset)).numpy()
        loss[test] = -np.log(np.where(y[test] == 1, p, 1 - p).clip(min=1e-12))
    per_query = np.bincount(groups, loss) / np.bincount(groups).clip(min=1)
    return float(loss.mean()), float(per_query.std(ddof=1) / len(per_query) ** 0.5)


def _score(x: Array, y: Array) -> tuple[Array, float]:
    """Weights and offset of a logistic regression, found in units of the standard deviation."""
    from sklearn.linear_model import LogisticRegression

    mean, scale = x.mean(0), x.std(0)
    scale[scale == 0] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # separable pairs end at the iteration limit
        fit = LogisticRegression(C=WEAK, max_iter=1000).fit((x - mean) / scale, y)
    weights = fit.coef_[0].astype(np.float64) / scale
    return weights, float(fit.intercept_[0] - weights @ mean)
