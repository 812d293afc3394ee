"""How much an index's answers can be trusted, measured on labelled queries (and strangers)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from laplace_metric.errors import InputError, UndefinedMetricWarning
from laplace_metric.evaluation import (
    Reliability,
    Sparsification,
    auroc,
    expected_calibration_error,
    r_auroc,
    sparsification,
)
from laplace_metric.search.match import (
    Calibration,
    LabelledHits,
    PairFeatures,
    SearchHits,
    Threshold,
)

TARGETS = (0.9, 0.95, 0.99)
ALPHA_SETS, ALPHA_UNKNOWN = 0.1, 0.05
MATCH, UNCERTAINTY, DISTANCE = "match probability", "uncertainty", "distance alone"


def threshold(calibration: Calibration, precision: float) -> tuple[Threshold | None, str]:
    """The threshold that promises a precision, or None; and either in words."""
    try:
        found = calibration.threshold_for(precision=precision)
    except InputError as error:
        return None, str(error).removeprefix(f"precision={precision:g} ")
    return found, str(found)


@dataclass(frozen=True)
class UncertaintyScores:
    """Scores of queries [Q], higher is less sure, by what they are made of."""

    hits: SearchHits
    calibration: Calibration | None

    @cached_property
    def logit(self) -> Tensor | None:
        """Of each pair [Q, depth]."""
        if self.calibration is None:
            return None
        return self.calibration.matcher.logit(PairFeatures.of(self.hits))

    @cached_property
    def probability(self) -> Tensor | None:
        """That the nearest neighbour [Q] is a match."""
        if self.calibration is None or self.logit is None:
            return None
        return self.calibration.matcher(self.logit)[:, 0]

    @cached_property
    def unknown(self) -> Tensor | None:
        """Whether each query [Q] is called unknown."""
        if self.calibration is None or self.logit is None:
            return None
        return self.calibration.p_value(self.hits, self.logit) <= ALPHA_UNKNOWN

    def scores(self) -> dict[str, Tensor]:
        """All that there are."""
        found = {} if self.probability is None else {MATCH: 1 - self.probability}
        return found | {UNCERTAINTY: self.hits.trace, DISTANCE: self.hits.distance[:, 0]}


@dataclass(frozen=True)
class Measures:
    """Of queries that were judged by their labels, and of strangers if there are any."""

    judged: LabelledHits
    calibration: Calibration | None
    strangers: SearchHits | None = None

    @cached_property
    def doubt(self) -> UncertaintyScores:
        """About the queries."""
        return UncertaintyScores(self.judged.hits, self.calibration)

    @property
    def right(self) -> Tensor:
        """Whether the nearest neighbour [Q] is a match."""
        return self.judged.match[:, 0]

    @cached_property
    def curves(self) -> dict[str, Sparsification]:
        """Share of right answers as the least sure queries are left unanswered."""
        scores = self.doubt.scores().items()
        return {name: sparsification(score, self.right) for name, score in scores}

    @cached_property
    def reliability(self) -> Reliability | None:
        """Of the match probability of the nearest neighbours."""
        p = self.doubt.probability
        return None if p is None else expected_calibration_error(p, self.right)

    def numbers(self) -> dict[str, Any]:
        """All of them, for JSON; what is not defined is None."""
        known, right = self.judged.known, self.right
        content: dict[str, Any] = {
            "queries": len(right),
            "known_share": float(known.double().mean()),
            "answers_right": float(right.double().mean()),
            "recall_at_1": _mean(right[known]),
            "r_auroc": {name: self._r_auroc(score) for name, score in self.doubt.scores().items()},
            "ausc": {name: curve.ausc for name, curve in self.curves.items()},
            "ausc_oracle": self.curves[DISTANCE].ausc_oracle,
        }
        if self.calibration is not None:
            content |= self._calibrated(self.calibration)
        if self.strangers is not None:
            content["strangers"] = self._strangers(self.strangers)
        return content

    def _r_auroc(self, score: Tensor) -> float | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            value = r_auroc(score, self.right)
        return None if math.isnan(value) else value

    def _calibrated(self, calibration: Calibration) -> dict[str, Any]:
        p, unknown, known = self.doubt.probability, self.doubt.unknown, self.judged.known
        assert p is not None
        assert unknown is not None
        assert self.reliability is not None
        return {
            "ece": self.reliability.ece,
            "brier": float((p - self.right.double()).square().mean()),
            "promises": [self._promise(calibration, p, target) for target in TARGETS],
            "retrieval_sets": self._sets(calibration),
            "unknown": {"of_known": _mean(unknown[known]), "of_others": _mean(unknown[~known])},
        }

    def _promise(self, calibration: Calibration, p: Tensor, target: float) -> dict[str, Any]:
        """What accepting by a threshold gives on these queries."""
        found, words = threshold(calibration, target)
        told: dict[str, Any] = {"promised": target, "threshold": None, "words": words}
        if found is None:
            return told | {"obtained": None, "answered": None}
        accepted = p >= found.value
        obtained, answered = _mean(self.right[accepted]), _mean(accepted)
        return told | {"threshold": found.value, "obtained": obtained, "answered": answered}

    def _sets(self, calibration: Calibration) -> dict[str, Any]:
        told: dict[str, Any] = {"promised": 1 - ALPHA_SETS, "coverage": None, "mean_size": None}
        assert self.doubt.logit is not None
        try:
            members = calibration.members(self.doubt.logit, ALPHA_SETS)
        except InputError as error:
            return told | {"words": str(error)}
        covered = (members & self.judged.match).any(1)
        known = self.judged.known
        return told | {"coverage": _mean(covered[known]), "mean_size": _mean(members.sum(1))}

    def _strangers(self, hits: SearchHits) -> dict[str, Any]:
        theirs = UncertaintyScores(hits, self.calibration)
        own, other = self.doubt.scores(), theirs.scores()
        found: dict[str, Any] = {
            "items": len(hits.trace),
            "auroc": {name: auroc(own[name], other[name]) for name in own},
        }
        if theirs.unknown is not None:
            found["unknown"] = _mean(theirs.unknown)
        return found


def _mean(values: Tensor) -> float | None:
    return float(values.to(torch.float64).mean()) if len(values) else None
