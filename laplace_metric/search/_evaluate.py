"""Measure on queries whose matches are known how much the answers of an index can be trusted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplace_metric.calibration._calibration import Assessment, Calibration
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration._thresholds import Threshold, accepts
from laplace_metric.errors import InputError, NotFittedError, UndefinedMetricWarning
from laplace_metric.evaluation import auroc, expected_calibration_error, r_auroc, sparsification
from laplace_metric.search._report import (
    ALPHA_UNKNOWN,
    AMBIGUITY,
    DISTANCE,
    EPISTEMIC,
    MATCH,
    UNCERTAINTY,
    GuaranteedPrecision,
    IndexReport,
    OODReport,
    SetCoverage,
)

PRECISIONS = (0.9, 0.95, 0.99)
"""Precisions that thresholds are asked to guarantee."""
ALPHA_SETS = 0.1
Flags = npt.NDArray[np.bool_]


def evaluated(
    labelled: LabelledHits,
    calibration: Calibration | None,
    ood: SearchHits | None,
    template: Tensor,
) -> IndexReport:
    """See ``Index.evaluate``; the report has the type and the device of ``template``."""
    answers = _Answers.of(labelled.hits, calibration, template)
    known, right = _there(labelled.known, template), _there(labelled.match[:, 0], template)
    curves = {name: sparsification(score, right) for name, score in answers.scores.items()}
    others = None if ood is None else _Answers.of(ood, calibration, template)
    report = IndexReport(
        queries=len(right),
        known_share=float(labelled.known.mean()),
        answers_right=float(labelled.match[:, 0].mean()),
        recall_at_1=_mean(right[known]),
        r_auroc={name: _r_auroc(score, right) for name, score in answers.scores.items()},
        ausc={name: curve.ausc for name, curve in curves.items()},
        ausc_oracle=curves[DISTANCE].ausc_oracle,
        sparsification=curves,
        right=right,
        uncertainty=answers.scores[UNCERTAINTY],
        match_probability=answers.probability,
        scores=answers.scores,
        has_match=known,
        called_unknown=answers.unknown,
    )
    if others is not None:
        report = _with_ood(report, answers, others)
    if calibration is not None:
        report = _calibrated(report, labelled, calibration, answers, others)
    return report


def guaranteed_threshold(
    calibration: Calibration, precision: float
) -> tuple[Threshold | None, str]:
    """Return the threshold that guarantees a precision, or None; and either in words."""
    try:
        threshold = calibration.threshold_for(precision=precision)
    except (InputError, NotFittedError) as error:
        return None, str(error).removeprefix(f"precision={precision:g} ")
    return threshold, str(threshold)


@dataclass(frozen=True, eq=False)
class _Answers:
    """Scores [Q] of queries, higher is less certain, and what a calibration makes of them."""

    scores: dict[str, Tensor]
    assessment: Assessment | None = None
    probability: Tensor | None = None
    unknown: Tensor | None = None

    @classmethod
    def of(cls, hits: SearchHits, calibration: Calibration | None, template: Tensor) -> _Answers:
        numbers = {UNCERTAINTY: hits.uncertainty, DISTANCE: hits.distance[:, 0]}
        numbers[EPISTEMIC] = hits.epistemic
        scores = {name: template.new_tensor(array) for name, array in numbers.items()}
        if hits.votes is not None:
            scores[AMBIGUITY] = _there(hits.votes.ambiguity, template)
        if calibration is None:
            return cls(scores)
        assessment = calibration.assess(hits)
        nearest = _there(assessment.match_probability[:, 0], template)
        unknown = _there(assessment.p_value <= ALPHA_UNKNOWN, template)
        return cls({MATCH: 1 - nearest} | scores, assessment, nearest, unknown)

    def accepted(self, threshold: Threshold) -> Flags:
        """Which queries [Q] are answered."""
        assert self.assessment is not None
        nearest = self.assessment.match_probability[:, 0]
        found: Flags = accepts(threshold, nearest, self.assessment.p_value, ALPHA_UNKNOWN)
        return found


def _calibrated(
    report: IndexReport,
    labelled: LabelledHits,
    calibration: Calibration,
    answers: _Answers,
    ood: _Answers | None,
) -> IndexReport:
    """Add what a calibration predicts; labels only where labels were given instead of matches."""
    assessment = answers.assessment
    assert assessment is not None
    p, unknown = assessment.match_probability[:, 0], assessment.p_value <= ALPHA_UNKNOWN
    known, right = labelled.known, labelled.match[:, 0]
    reliability = expected_calibration_error(p, right)
    probability = assessment.label_probability
    if assessment.answer is not None and probability is not None and labelled.codes is not None:
        answered = np.take_along_axis(labelled.match, assessment.answer[:, None], 1)[:, 0]
        ece = expected_calibration_error(probability, answered).ece
        report = replace(report, label_accuracy=_mean(answered), label_ece=ece)
    guarantees, largest = _guarantees(calibration, answers, labelled, ood)
    return replace(
        report,
        ece=reliability.ece,
        brier=float(np.square(p - right).mean()),
        mean_match_probability=_mean(p),
        guarantees=guarantees,
        largest_guarantee=largest,
        retrieval_sets=_sets(labelled, calibration, assessment.logit),
        unknown={"of_known": _mean(unknown[known]), "of_others": _mean(unknown[~known])},
        smallest_p_value=calibration.smallest_p_value,
        cross_fitted=calibration.cross_fitted,
        reliability=reliability,
    )


def _guarantees(
    calibration: Calibration, answers: _Answers, labelled: LabelledHits, ood: _Answers | None
) -> tuple[tuple[GuaranteedPrecision, ...], GuaranteedPrecision | None]:
    def outcome(threshold: Threshold) -> GuaranteedPrecision:
        return _outcome(threshold, answers, labelled, ood)

    found = tuple(_guaranteed_precision(calibration, target, outcome) for target in PRECISIONS)
    least = None
    if found[0].threshold is None:
        with suppress(InputError, NotFittedError):
            least = outcome(calibration.largest_guarantee())
    return found, least


def _guaranteed_precision(
    calibration: Calibration, guaranteed: float, outcome: Callable[[Threshold], GuaranteedPrecision]
) -> GuaranteedPrecision:
    threshold, explanation = guaranteed_threshold(calibration, guaranteed)
    if threshold is None:
        with suppress(NotFittedError):
            missing = calibration.queries_needed(guaranteed)
            return GuaranteedPrecision(guaranteed, None, explanation, queries_needed=missing)
        return GuaranteedPrecision(guaranteed, None, explanation)
    return outcome(threshold)


def _outcome(
    threshold: Threshold, answers: _Answers, labelled: LabelledHits, ood: _Answers | None
) -> GuaranteedPrecision:
    accepted = answers.accepted(threshold)
    return GuaranteedPrecision(
        threshold.target,
        threshold.value,
        str(threshold),
        _mean(labelled.match[accepted, 0]),
        _mean(accepted),
        without_match=_mean(accepted[~labelled.known]),
        ood=None if ood is None else _mean(ood.accepted(threshold)),
    )


def _sets(
    labelled: LabelledHits, calibration: Calibration, logit: npt.NDArray[np.float64]
) -> SetCoverage:
    guaranteed = 1 - ALPHA_SETS
    try:
        members = calibration.members(logit, ALPHA_SETS)
    except InputError as error:
        return SetCoverage(guaranteed, explanation=str(error))
    covered = (members & labelled.match).any(1)
    return SetCoverage(guaranteed, _mean(covered[labelled.known]), _mean(members.sum(1)))


def _with_ood(report: IndexReport, answers: _Answers, ood: _Answers) -> IndexReport:
    aurocs = {name: auroc(score, ood.scores[name]) for name, score in answers.scores.items()}
    uncertainty = ood.scores[UNCERTAINTY]
    unknown = None if ood.unknown is None else _mean(ood.unknown)
    return replace(
        report,
        ood=OODReport(len(uncertainty), aurocs, unknown),
        ood_uncertainty=uncertainty,
        ood_scores=ood.scores,
    )


def _r_auroc(score: Tensor, right: Tensor) -> float | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        value = r_auroc(score, right)
    return None if math.isnan(value) else value


def _mean(values: Any) -> float | None:
    array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    return float(array.mean(dtype=np.float64)) if len(array) else None


def _there(array: npt.NDArray[Any], template: Tensor) -> Tensor:
    return torch.from_numpy(array).to(template.device)
