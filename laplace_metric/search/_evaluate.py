"""Measure on queries whose matches are known how much the answers of an index can be trusted."""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplace_metric.calibration._assessment import Assessment
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration.rules._rule import Rule
from laplace_metric.errors import InputError, NotFittedError, UndefinedMetricWarning
from laplace_metric.evaluation import auroc, expected_calibration_error, r_auroc, sparsification
from laplace_metric.search._report import (
    ALPHA_UNKNOWN,
    AMBIGUITY,
    DISTANCE,
    EPISTEMIC,
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
    """Return the report of ``Index.evaluate``, with the type and the device of ``template``."""
    of = "match" if calibration is None or labelled.codes is None else calibration.decides_about
    answers = _Answers.of(labelled.hits, calibration, of, template)
    known, nearest = labelled.known, labelled.match[:, 0]
    correct = nearest
    if of == "label":
        correct = labelled.match[np.arange(len(known)), answers.assessed.carrier]
    right = _there(correct, template)
    curves = {name: sparsification(score, right) for name, score in answers.scores.items()}
    report = IndexReport(
        queries=len(right),
        known_share=float(known.mean()),
        answers_right=float(correct.mean()),
        recall_at_1=_mean(nearest[known]),
        r_auroc={name: _r_auroc(score, right) for name, score in answers.scores.items()},
        ausc={name: curve.ausc for name, curve in curves.items()},
        ausc_oracle=curves[DISTANCE].ausc_oracle,
        sparsification=curves,
        right=right,
        decides_about=of,
        scores=answers.scores,
        has_match=_there(known, template),
    )
    others = None
    if ood is not None:
        others = _Answers.of(ood, calibration, of, template)
        aurocs = {n: auroc(score, others.scores[n]) for n, score in answers.scores.items()}
        unknown = None if others.assessment is None else _mean(others.unknown)
        summary = OODReport(len(ood.positions), aurocs, unknown)
        report = replace(report, ood=summary, ood_scores=others.scores)
    if calibration is None:
        return report
    return _calibrated(report, labelled, calibration, answers, others, template)


def guaranteed_rule(calibration: Calibration, precision: float, of: str) -> tuple[Rule | None, str]:
    """Return the rule that guarantees a precision, or None; and either in words."""
    try:
        rule = calibration.guarantee(precision=precision, of=of)
    except (InputError, NotFittedError) as error:
        return None, str(error).removeprefix(f"precision={precision:g} ")
    return rule, rule.sentence


@dataclass(frozen=True, eq=False)
class _Answers:
    """Scores [Q] of queries, higher is less certain, and their assessment by a calibration."""

    scores: dict[str, Tensor]
    assessment: Assessment | None
    probability: npt.NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls, hits: SearchHits, calibration: Calibration | None, of: str, template: Tensor
    ) -> _Answers:
        numbers = {UNCERTAINTY: hits.uncertainty, DISTANCE: hits.distance[:, 0]}
        numbers[EPISTEMIC] = hits.epistemic
        scores = {name: template.new_tensor(array) for name, array in numbers.items()}
        if hits.votes is not None:
            scores[AMBIGUITY] = _there(hits.votes.ambiguity, template)
        if calibration is None:
            return cls(scores, None)
        assessment = calibration.assess(hits)
        p = assessment.label_probability if of == "label" else assessment.match_probability[:, 0]
        assert p is not None
        return cls({f"{of} probability": 1 - _there(p, template)} | scores, assessment, p)

    @property
    def assessed(self) -> Assessment:
        """Assessment, where there is a calibration."""
        assert self.assessment is not None
        return self.assessment

    @property
    def unknown(self) -> Flags:
        """Queries [Q] that are called unknown."""
        return self.assessed.p_value <= ALPHA_UNKNOWN


def _calibrated(
    report: IndexReport,
    labelled: LabelledHits,
    calibration: Calibration,
    answers: _Answers,
    ood: _Answers | None,
    template: Tensor,
) -> IndexReport:
    """Add what a calibration predicts."""
    unknown, known, p = answers.unknown, labelled.known, answers.probability
    assert p is not None
    right = _here(report.right)
    reliability = expected_calibration_error(p, right)
    guarantees, largest = _guarantees(report, calibration, answers, ood)
    return replace(
        report,
        ece=reliability.ece,
        brier=float(np.square(p - right).mean()),
        mean_probability=_mean(p),
        guarantees=guarantees,
        largest_guarantee=largest,
        retrieval_sets=_sets(labelled, calibration, answers.assessed.logit),
        unknown={"of_known": _mean(unknown[known]), "of_others": _mean(unknown[~known])},
        smallest_p_value=calibration.smallest_p_value,
        cross_fitted=calibration.cross_fitted,
        calibrated_without_match=float(1 - calibration.known.mean()),
        reliability=reliability,
        probability=_there(p, template),
        called_unknown=_there(unknown, template),
    )


def _guarantees(
    report: IndexReport, calibration: Calibration, answers: _Answers, ood: _Answers | None
) -> tuple[tuple[GuaranteedPrecision, ...], GuaranteedPrecision | None]:
    """Return the outcome of the rule of each of ``PRECISIONS``; if the first has none, of any."""
    right, known, of = _here(report.right), _here(report.has_match), report.decides_about

    def outcome(rule: Rule) -> GuaranteedPrecision:
        assert rule.target is not None
        answered = _answered(rule, answers.assessed)
        return GuaranteedPrecision(
            rule.target,
            rule.value,
            rule.sentence,
            _mean(right[answered]),
            _mean(answered),
            without_match=_mean(answered[~known]),
            accepted=_there(answered, report.right),
            ood=None if ood is None else _mean(_answered(rule, ood.assessed)),
        )

    found, largest = [], None
    for precision in PRECISIONS:
        rule, explanation = guaranteed_rule(calibration, precision, of)
        if rule is not None:
            found.append(outcome(rule))
            continue
        missing = None
        with suppress(NotFittedError):
            missing = calibration.queries_needed(precision, of=of)
        found.append(GuaranteedPrecision(precision, None, explanation, queries_needed=missing))
    if found[0].threshold is None:
        with suppress(InputError, NotFittedError):
            largest = outcome(calibration.largest_guarantee(of=of))
    return tuple(found), largest


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


def _r_auroc(score: Tensor, right: Tensor) -> float | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        value = r_auroc(score, right)
    return None if math.isnan(value) else value


def _answered(rule: Rule, found: Assessment) -> npt.NDArray[Any]:
    return rule.compared(found).first.accepted(rule.value)


def _mean(values: npt.NDArray[Any]) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


def _here(tensor: Tensor | None) -> npt.NDArray[Any]:
    assert tensor is not None
    return tensor.cpu().numpy()


def _there(array: npt.NDArray[Any], template: Tensor) -> Tensor:
    return torch.from_numpy(array).to(template.device)
