"""Result of ``Index.evaluate``: numbers, a table, and series for figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric._utils.display import LINES, Rows, Shown, as_percent
from laplace_metric.calibration.guarantees._queries_needed import QueriesNeeded
from laplace_metric.evaluation import Reliability, Sparsification

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
        Precision that was asked for.
    threshold : float or None
        Least probability of an answer that is given; None if no threshold can guarantee that.
    explanation : str
        The guarantee, or why there is none.
    obtained, answered : float or None
        Share of the answers that are right; share of queries that are answered.
    queries_needed : QueriesNeeded or None
        Queries that the calibration lacks, for a precision that cannot be guaranteed.
    without_match, ood : float or None
        Share of the queries without a match in the index that are answered; and of the
        out-of-distribution inputs.
    accepted : Tensor [Q] or None
        True for each of these queries that is answered; None without a threshold.
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
        Share that these sets reach, and mean number of items in a set; None if no sets can
        guarantee that.
    explanation : str or None
        Reason why they cannot; None if they can.
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
        Number of out-of-distribution inputs.
    auroc : dict of score to float
        Area under the ROC curve of each score.
    unknown : float or None
        Share of the inputs that is called unknown; None without a calibration.
    """

    items: int
    auroc: dict[str, float]
    unknown: float | None


@dataclass(frozen=True, eq=False, repr=False)
class IndexReport(Shown):
    """Result of ``Index.evaluate``.

    An answer is what ``decides_about`` names. Scores are the probability of the answer,
    "uncertainty", "distance alone", "epistemic" and "ambiguity".

    Parameters
    ----------
    queries : int
        Number of test queries.
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
        Expected calibration error and Brier score of the probability of the answers; smaller is
        better. None, the default, without a calibration.
    guarantees : tuple of GuaranteedPrecision
        Results of the thresholds that guarantee a precision of .9, .95 and .99. Empty, the default,
        without a calibration.
    largest_guarantee : GuaranteedPrecision or None
        Largest precision that can be guaranteed, if it is less than .9. Default: None.
    retrieval_sets : SetCoverage or None
        Coverage and size of retrieval sets. None, the default, without a calibration.
    mean_probability : float or None
        Share of right answers that the index predicts on these queries. None, the default, without
        a calibration.
    unknown : dict or None
        Share called unknown "of_known" queries (0.05 by design) and "of_others". None, the default,
        without a calibration.
    smallest_p_value : float or None
        Smallest p-value of "unknown" that the calibration queries allow. None, the default, without
        a calibration.
    cross_fitted : bool or None
        True if the guarantees are simulated (``Calibration.cross_fitted``). None, the default,
        without a calibration.
    calibrated_without_match : float or None
        Share of the calibration queries without a match in the index: guarantees cover as many of
        them, and with 0 only queries that have a match. None, the default, without a calibration.
    ood : OODReport or None
        Separation of the out-of-distribution inputs. None, the default, without such inputs.
    sparsification : dict of score to Sparsification
        Share of right answers as the least certain queries are left out, for each score.
    reliability : Reliability or None
        Share of right answers in bins of their probability. None, the default, without a
        calibration.
    right : Tensor [Q]
        True for each query whose answer is right.
    probability : Tensor [Q] or None
        Probability that the answer is right. None, the default, without a calibration.
    decides_about : "label" | "match"
        Answer to a query: its predicted label, if labels calibrated the index and are given here;
        else the nearest item, which is right if it is a match. Default: "match".
    scores : dict of score to Tensor [Q]
        Scores of each query; a higher one is less certain. The probability stands here as one minus
        the probability. Default: empty.
    has_match : Tensor [Q] or None
        True for each query that has a match in the index. Default: None.
    called_unknown : Tensor [Q] or None
        True for each query with a p-value of 0.05 or less. None, the default, without a
        calibration.
    ood_scores : dict of score to Tensor [M]
        Scores of each out-of-distribution input. Default: empty.
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
        """Statement that a right answer makes true, in words."""
        match = self.decides_about == "match"
        return "nearest item is a match" if match else "predicted label is right"

    @property
    def ranked_by(self) -> str:
        """Name of the score that ranks answers best by their certainty."""
        name = f"{self.decides_about} probability"
        return name if name in self.scores else EPISTEMIC

    def _shown_rows(self) -> Rows:
        rows = [row for row in self.rows()[1:] if not row[0].startswith("AUSC")]
        first = [row for row in rows if not row[0].startswith("AUROC of wrong")]
        room = LINES - 2
        return [*first[:room], ("and", "print(report) has every number")]

    def to_json(self) -> dict[str, Any]:
        """Return all numbers; without a calibration or OOD inputs theirs are left out."""
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
                rows.append(("OOD inputs that are unfamiliar", _percent(self.ood.unknown)))
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
        of_known = f"unfamiliar, of queries with a match ({ALPHA_UNKNOWN:.0%} by design)"
        rows.append((of_known, _percent(unknown["of_known"])))
        if unknown["of_others"] is not None:
            others = _percent(unknown["of_others"])
            rows.append(("unfamiliar, of queries without a match", others))
        rows.append(("smallest p-value that is possible", _short(self.smallest_p_value)))
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
