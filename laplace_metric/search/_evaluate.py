"""Measure on queries whose matches are known how much the answers of an index can be trusted.

Result of ``Index.evaluate``: numbers, a table, and series for figures.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric._utils.display import LINES, Rows, Shown, as_percent
from laplace_metric.calibration._calibration import Assessment, Calibration
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration._sequences import QueriesNeeded
from laplace_metric.calibration._thresholds import Threshold, accepts
from laplace_metric.errors import InputError, NotFittedError, UndefinedMetricWarning
from laplace_metric.evaluation import (
    Reliability,
    Sparsification,
    auroc,
    expected_calibration_error,
    r_auroc,
    sparsification,
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
    of = "match" if calibration is None or labelled.codes is None else calibration.decides_about
    answers = _Answers.of(labelled.hits, calibration, of, template)
    known, nearest = labelled.known, labelled.match[:, 0]
    correct = nearest
    if of == "label":
        correct = labelled.match[np.arange(len(known)), answers.assessed.answer]
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


def guaranteed_threshold(
    calibration: Calibration, precision: float, of: str
) -> tuple[Threshold | None, str]:
    """Return the threshold that guarantees a precision, or None; and either in words."""
    try:
        threshold = calibration.threshold_for(precision=precision, of=of)
    except (InputError, NotFittedError) as error:
        return None, str(error).removeprefix(f"precision={precision:g} ")
    return threshold, str(threshold)


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
    """Outcome of the threshold of each of ``PRECISIONS``; where the first has none, of any."""
    right, known, of = _here(report.right), _here(report.has_match), report.decides_about

    def outcome(threshold: Threshold) -> GuaranteedPrecision:
        accepted = accepts(threshold, answers.assessed, ALPHA_UNKNOWN)
        return GuaranteedPrecision(
            threshold.target,
            threshold.value,
            str(threshold),
            _mean(right[accepted]),
            _mean(accepted),
            without_match=_mean(accepted[~known]),
            accepted=_there(accepted, report.right),
            ood=None if ood is None else _mean(accepts(threshold, ood.assessed, ALPHA_UNKNOWN)),
        )

    found, largest = [], None
    for precision in PRECISIONS:
        threshold, explanation = guaranteed_threshold(calibration, precision, of)
        if threshold is not None:
            found.append(outcome(threshold))
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


def _mean(values: npt.NDArray[Any]) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


def _here(tensor: Tensor | None) -> npt.NDArray[Any]:
    assert tensor is not None
    return tensor.cpu().numpy()


def _there(array: npt.NDArray[Any], template: Tensor) -> Tensor:
    return torch.from_numpy(array).to(template.device)


# Result of ``Index.evaluate``: numbers, a table, and series for figures.

UNCERTAINTY, DISTANCE = "uncertainty", "distance alone"
EPISTEMIC, AMBIGUITY = "epistemic", "ambiguity"
"""Scores of a query that rank wrong answers above right ones, if they are any good."""
ALPHA_UNKNOWN = 0.05
"""Share of queries with a match that may be called unknown."""
SERIES = (
    "sparsification", "reliability", "right",
    "probability", "scores", "has_match", "called_unknown", "ood_scores",
)  # fmt: skip
"""Fields of a report that are for figures, not for tables."""


@dataclass(frozen=True)
class GuaranteedPrecision:
    """Result of answering these queries by a threshold.

    Parameters
    ----------
    guaranteed : float
    threshold : float or None
        On the probability of the answer; None if no threshold can guarantee that.
    explanation : str
        The guarantee, or why there is none.
    obtained, answered : float or None
        Share of the answers that are right; share of queries that are answered.
    queries_needed : QueriesNeeded or None
        Of a precision that cannot be guaranteed: what the calibration lacks.
    without_match, ood : float or None
        Share of the queries without a match in the index that are answered; and of the
        out-of-distribution inputs.
    accepted : Tensor [Q] or None
        Which of these queries are answered; None without a threshold.
    """

    guaranteed: float
    threshold: float | None
    explanation: str
    obtained: float | None = None
    answered: float | None = None
    queries_needed: QueriesNeeded | None = None
    without_match: float | None = None
    ood: float | None = None
    accepted: Bool[Tensor, " Q"] | None = field(default=None, compare=False, repr=False)

    @property
    def outcome(self) -> str:
        """Precision that was obtained, or why nothing is guaranteed, in words."""
        if self.threshold is None:
            return self.explanation
        parts = [f"obtained {_percent(self.obtained)}, answers {_percent(self.answered)}"]
        rates = {"without a match": self.without_match, "OOD": self.ood}
        open_set = [f"{_percent(v)} of those {n}" for n, v in rates.items() if v is not None]
        return f"{parts[0]} ({', '.join(open_set)})" if open_set else parts[0]


@dataclass(frozen=True)
class SetCoverage:
    """Coverage of retrieval sets on these queries.

    Parameters
    ----------
    guaranteed : float
        Share of the queries with a match whose set holds one.
    coverage, mean_size : float or None
        That share, and the items in a set; None if no sets can guarantee that.
    explanation : str or None
        Why not.
    """

    guaranteed: float
    coverage: float | None = None
    mean_size: float | None = None
    explanation: str | None = None


@dataclass(frozen=True)
class OODReport:
    """Separation of out-of-distribution inputs from the queries by each score.

    Parameters
    ----------
    items : int
    auroc : dict of score to float
    unknown : float or None
        Share that is called unknown; None without a calibration.
    """

    items: int
    auroc: dict[str, float]
    unknown: float | None


@dataclass(frozen=True, eq=False, repr=False)
class IndexReport(Shown):
    """Result of ``Index.evaluate``.

    An answer is what ``decides_about`` names. Scores are the probability of the answer,
    ``UNCERTAINTY``, ``DISTANCE``, ``EPISTEMIC`` and ``AMBIGUITY``.

    Parameters
    ----------
    queries : int
    known_share : float
        Share of queries with a match in the index: whose label it has, where matches are labels.
    answers_right : float
        Share of all queries whose answer is right.
    recall_at_1 : float or None
        Share of the queries with a match in the index whose nearest item is one.
    r_auroc : dict of score to float or None
        AUROC of wrong answers against right ones; None where there is only one kind.
    ausc : dict of score to float
        Area under the share of right answers as the least certain queries are left out.
    ausc_oracle : float
        The largest possible.
    ece, brier : float or None
        Of the probability of the answers; None without a calibration, as the next.
    guarantees : tuple of GuaranteedPrecision
        Of thresholds for ``PRECISIONS``.
    largest_guarantee : GuaranteedPrecision or None
        The most that can be guaranteed, where it is less than all of these.
    retrieval_sets : SetCoverage or None
    mean_probability : float or None
        Share of right answers that the index predicts on these queries.
    unknown : dict or None
        Share called unknown "of_known" queries (0.05 by design) and "of_others".
    smallest_p_value : float or None
        That "unknown" can reach with the held-out queries of the calibration.
    cross_fitted : bool or None
        ``Calibration.cross_fitted``: its guarantees are simulated; None without a calibration.
    calibrated_without_match : float or None
        Share of the calibration queries without a match in the index: guarantees cover as many of
        them, and with 0 only queries that have a match. None without a calibration.
    ood : OODReport or None
    sparsification : dict of score to Sparsification
    reliability : Reliability or None
    right : Tensor [Q]
        Whether the answer is right.
    probability : Tensor [Q] or None
        That it is.
    decides_about : "label" | "match"
        The answer to a query: its predicted label, where labels calibrated the index and are given
        here; else the nearest item, which is right if it is a match.
    scores : dict of score to Tensor [Q]
        Of each query, higher is less certain: one less the probability.
    has_match : Tensor [Q] or None
        Whether the index has a match of each query.
    called_unknown : Tensor [Q] or None
        At a p-value of 0.05 or less; None without a calibration.
    ood_scores : dict of score to Tensor [M]
    """

    queries: int
    known_share: float
    answers_right: float
    recall_at_1: float | None
    r_auroc: dict[str, float | None]
    ausc: dict[str, float]
    ausc_oracle: float
    sparsification: dict[str, Sparsification]
    right: Bool[Tensor, " Q"]
    decides_about: str = "match"
    ece: float | None = None
    brier: float | None = None
    mean_probability: float | None = None
    guarantees: tuple[GuaranteedPrecision, ...] = ()
    largest_guarantee: GuaranteedPrecision | None = None
    retrieval_sets: SetCoverage | None = None
    unknown: dict[str, float | None] | None = None
    smallest_p_value: float | None = None
    cross_fitted: bool | None = None
    calibrated_without_match: float | None = None
    reliability: Reliability | None = None
    ood: OODReport | None = None
    probability: Float[Tensor, " Q"] | None = None
    scores: Mapping[str, Float[Tensor, " Q"]] = field(default_factory=dict)
    has_match: Bool[Tensor, " Q"] | None = None
    called_unknown: Bool[Tensor, " Q"] | None = None
    ood_scores: Mapping[str, Float[Tensor, " M"]] = field(default_factory=dict)

    def _sentence(self) -> str:
        queries = f"{as_percent(self.answers_right)} of {self.queries:,} queries"
        right = f"the {self.claim} for {queries}"
        if self.mean_probability is None:
            return f"{right}; the index was not calibrated."
        return f"{right}; the index predicts {as_percent(self.mean_probability)}."

    @property
    def claim(self) -> str:
        """What is right about a right answer, in words."""
        match = self.decides_about == "match"
        return "nearest item is a match" if match else "predicted label is right"

    @property
    def ranked_by(self) -> str:
        """The score that says best which answers are sure."""
        name = f"{self.decides_about} probability"
        return name if name in self.scores else EPISTEMIC

    def _shown_rows(self) -> Rows:
        rows = [row for row in self.rows()[1:] if not row[0].startswith("AUSC")]
        first = [row for row in rows if not row[0].startswith("AUROC of wrong")]
        room = LINES - 2
        return [*first[:room], ("and", "print(report) has every number")]

    def to_json(self) -> dict[str, Any]:
        """All numbers; without a calibration or OOD inputs theirs are left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in SERIES}
        required = values.pop("recall_at_1")
        present = {name: _plain(x) for name, x in values.items() if x is not None and x != ()}
        return present | {"recall_at_1": required}

    def rows(self) -> list[tuple[str, str]]:
        """Return pairs of a description and a number, both in words."""
        rows = [
            ("queries", f"{self.queries:,}"),
            ("with a match in the index", _percent(self.known_share)),
            ("recall@1 of those", _percent(self.recall_at_1)),
            (f"{self.claim}, of all queries", _percent(self.answers_right)),
        ]
        rows += [(f"AUROC of wrong answers by {n}", _short(v)) for n, v in self.r_auroc.items()]
        rows += [(f"AUSC by {name}", _short(value)) for name, value in self.ausc.items()]
        rows.append(("AUSC, the best possible", _short(self.ausc_oracle)))
        if self.retrieval_sets is not None and self.unknown is not None:
            rows += self._calibrated_rows(self.retrieval_sets, self.unknown)
        if self.ood is not None:
            rows += [(f"AUROC of OOD inputs by {n}", _short(v)) for n, v in self.ood.auroc.items()]
            if self.ood.unknown is not None:
                rows.append(("OOD inputs called unknown", _percent(self.ood.unknown)))
        return rows

    def _calibrated_rows(
        self, sets: SetCoverage, unknown: dict[str, float | None]
    ) -> list[tuple[str, str]]:
        probability = f"{self.decides_about} probability"
        rows = [
            (f"{probability}: mean of all queries", _percent(self.mean_probability)),
            (f"{probability}: calibration error (ECE)", _short(self.ece)),
            (f"{probability}: Brier score", _short(self.brier)),
        ]
        least = () if self.largest_guarantee is None else (self.largest_guarantee,)
        for one in (*least, *self.guarantees):
            rows.append((f"precision guaranteed {one.guaranteed:.0%}", one.outcome))
        text = sets.explanation
        if text is None:
            items = f"{sets.mean_size or 0:.1f} items a query"
            covered = "no query has one" if sets.coverage is None else _percent(sets.coverage)
            text = f"{covered}; {items}"
        rows.append((f"sets with a match, guaranteed {sets.guaranteed:.0%}", text))
        of_known = f"called unknown, of known queries ({ALPHA_UNKNOWN:.0%} by design)"
        rows.append((of_known, _percent(unknown["of_known"])))
        if unknown["of_others"] is not None:
            others = _percent(unknown["of_others"])
            rows.append(("called unknown, of queries without a match", others))
        rows.append(('smallest p-value that "unknown" can reach', _short(self.smallest_p_value)))
        if self.cross_fitted:
            rows.append(("calibrated by", "cross-fitting: guarantees are simulated, not proven"))
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{name:<52}{value}" for name, value in self.rows())


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, GuaranteedPrecision):  # which queries are answered is no number
        value = replace(value, accepted=None)
        return {name: part for name, part in asdict(value).items() if name != "accepted"}
    return asdict(value) if isinstance(value, (SetCoverage, OODReport)) else value


def _percent(value: float | None) -> str:
    return "n/a" if value is None else as_percent(value)


def _short(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
