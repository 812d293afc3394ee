"""Decisions for the scores of any search: probability of a match, guarantees, what to pass on.

A search returns up to k hits for each query, with a score or several. Half of the queries fit the
probability of a match (``_score_model``), the other half carries every guarantee, with p the
probability of the first hit:

    precision, recall  of accepted first hits: ``threshold_for`` (Learn then Test)
    FPIR, FMR          of first hits of queries without a match, and of comparisons
    relevant items     that are left out of what is passed on

A place without a hit (``_padding``) is no comparison, in any test and any rate. A query without a
hit is never accepted; it counts in coverage, FNIR and ``keep_relevant``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import (
    ArrayLike,
    as_array,
    as_floats,
    as_path,
    check_share,
)
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.calibration._prevalence import (
    Fraction,
    OpenSetFraction,
    at_fraction,
    estimated_fraction,
    level_at_fraction,
    point_of,
    rows_at_fraction,
)
from laplace_metric.calibration._probability import CALIBRATORS
from laplace_metric.calibration._saved import calibrator_of
from laplace_metric.calibration._score_model import (
    Array,
    Flags,
    Judged,
    ScoreModel,
    checked_scores,
    evidence_column,
    score_features,
)
from laplace_metric.calibration._sequences import NEVER, QueriesNeeded, queries_needed
from laplace_metric.calibration._thresholds import (
    error_rates,
    fewest_false,
    highest_behind,
    precision_of_mixture,
    threshold_for,
    threshold_of_false,
    threshold_of_miss,
)
from laplace_metric.errors import (
    FileFormatError,
    InputError,
)
from laplace_metric.io import MALFORMED, Fields, Kind, Part, SavedFile, checked_array, write

if TYPE_CHECKING:
    import torch

    from laplace_metric.calibration._export import RuleGraph

SCORES = Kind("scores", "a saved calibration of scores", 2)
RULE = Kind("rule", "a saved rule", 2)
LARGEST = 1e300
"""A score that decides is looked for up to here."""
FEATURES = {
    "value": "the score alone",
    "values": "the scores alone",
    "list": "the score and the other hits of its query",
    "evidence": "the score, the other hits of its query and the evidence",
}


@dataclass(frozen=True, repr=False)
class ScoreCalibration(Shown):
    """Match probabilities of scored hits, and the queries that test what they are worth.

    Parameters
    ----------
    kinds : tuple of "similarity" | "distance" | "score"
        One per scorer.
    k : int
        Hits of each query.
    evidence : tuple of str
        Names of further columns.
    chosen : str
        Features and calibrator with the smallest cross-validated log loss.
    losses : dict of str to float
        That loss, of every candidate.
    model : features -> probability
    held_out : [n, k]
        Probabilities of the tested queries, by a model that did not see them; 0 where there is no
        hit.
    relevant : [n, k]
        Relevance of these hits: 1, 0, -1 where a hit was not judged, -2 where there is no hit.
    mated : [n]
        Whether the collection holds a relevant item: 1, 0, or -1 where it is not known.
    total : [n]
        Relevant items of each query in the collection.
    grid : [m]
        Probabilities of the first hits of the first half, among which thresholds are chosen; none
        of a cross-fitted calibration.
    unseen, unseen_class : [m]
        Probabilities of the first hits of queries whose class was not in the collection, and the
        number of their class; see ``with_new_classes``.
    halves : ScoreCalibration or None
        Of a cross-fitted one: the same queries by halves, for what is guaranteed by halves alone.

    Examples
    --------
    >>> g = np.random.default_rng(0)
    >>> right = g.random(600) < 0.7
    >>> cosine = np.where(right, g.normal(0.8, 0.07, 600), g.normal(0.65, 0.07, 600))
    >>> from laplace_metric.calibration import calibrate_scores
    >>> print(calibrate_scores(cosine, right).guarantee(precision=0.9))  # doctest: +ELLIPSIS
    accept a similarity of 0.73... or more (a match probability of at least 0...): precision at \
least 90% with 95% confidence (simulated, not proven); ...
    """

    kinds: tuple[str, ...]
    k: int
    evidence: tuple[str, ...]
    chosen: str
    losses: Mapping[str, float]
    model: ScoreModel
    held_out: Array
    relevant: Judged
    mated: Judged
    total: Array
    grid: Array
    unseen: Array
    unseen_class: Array
    halves: ScoreCalibration | None = None

    @property
    def cross_fitted(self) -> bool:
        """True if all queries test it: its precision is simulated, not proven."""
        return not len(self.grid)

    def _sentence(self) -> str:
        features, calibrator = self.chosen.split(", ")
        tested = "cross-fitted" if self.cross_fitted else "held-out"
        return (
            f"match probability by {FEATURES[features]}, {calibrator}; tested on "
            f"{len(self.mated):,} {tested} queries."
        )

    def _shown_rows(self) -> Rows:
        p, right = self._first()
        return in_rows(
            {
                "hits of a query": self.k,
                "first hit is relevant": f"{right.mean():.1%} of {len(right):,} judged",
                "open-set queries": f"{int((self.mated == 0).sum()):,} of {len(self.mated):,}",
                "mean probability of the first hit": f"{p.mean():.1%}",
            }.items()
        )

    def probability(
        self,
        scores: ArrayLike,
        *,
        open_set_fraction: Fraction | None = None,
        **evidence: ArrayLike,
    ) -> Array:
        """Return the match probability of each hit, [Q, k] or [Q] as the scores; 0 for no hit.

        Parameters
        ----------
        scores : [Q], [Q, k] or [Q, k, S]
            Scores as for ``calibrate_scores``: the same scorers, in the same order, and as many
            hits, or more places of which those beyond k are empty.
        open_set_fraction : float in (0, 1) or OpenSetFraction, optional
            Share of the queries without a match, if it is another than the calibration's.
        **evidence : [Q] or [Q, k]
            The columns that calibrated it, by name.

        Raises
        ------
        InputError
            For other shapes or columns than those that calibrated it, NaN, and scores that are not
            sorted.
        """
        p = self._assessed(scores, evidence).clip(0)
        if open_set_fraction is not None:
            has_hit = self.relevant[:, 0] != NO_HIT
            first, mated = self.held_out[has_hit, 0], self.mated[has_hit]
            p = at_fraction(p, point_of(open_set_fraction), first, mated)
        return p[:, 0] if np.ndim(scores) == 1 else p

    def _assessed(self, scores: ArrayLike, evidence: Mapping[str, ArrayLike]) -> Array:
        """Match probabilities [Q, k], and ``NEVER`` where there is no hit."""
        values, exists = checked_scores(scores, self.kinds)
        if set(evidence) != set(self.evidence):
            wanted = ", ".join(self.evidence) or "none"
            raise InputError(f"evidence is {sorted(evidence)}: pass {wanted}, which calibrated it.")
        columns = [evidence_column(name, evidence[name], exists) for name in self.evidence]
        k = values.shape[1]
        if k < self.k or exists[:, self.k :].any():
            raise InputError(
                f"scores has {k} hits a query: pass {self.k}, as many as calibrated it. Shorter "
                "lists end with -inf (inf of distances)."
            )
        # places beyond k are empty, as of lists that were padded to another length
        values, exists = values[:, : self.k], exists[:, : self.k]
        columns = [column[:, : self.k] for column in columns]
        return np.where(exists, self.model(score_features(values, exists, columns)), NEVER)

    def open_set_fraction(self, scores: ArrayLike, **evidence: ArrayLike) -> OpenSetFraction:
        """Estimate the share of queries without a match among those that have a hit.

        It assumes that only that share moved, and tests it: see ``OpenSetFraction.p_value``.

        Raises
        ------
        InputError
            As ``probability``; for fewer than 30 new queries, or held-out ones of a kind.
        """
        by = self.halves or self
        new, has_hit = by._assessed(scores, evidence)[:, 0], by.relevant[:, 0] != NO_HIT
        mated, open_set = (by.held_out[has_hit & (by.mated == kind), 0] for kind in (1, 0))
        return estimated_fraction(new[new > NEVER], mated, open_set)

    def _by_halves(self, what: str) -> ScoreCalibration:
        """Cross-fitted, a recall was broken in up to 9 % of simulations, not 5 %, an FPIR 8 %."""
        if not self.cross_fitted:
            return self
        if self.halves is None:
            raise InputError(f"{what} takes queries held out: calibrate with cross_fit=0.")
        return self.halves

    def _first(self) -> tuple[Array, Flags]:
        """Probability of the first hit, and whether it is relevant, where that was judged."""
        judged = self.relevant[:, 0] >= 0
        return self.held_out[judged, 0], self.relevant[judged, 0] == 1

    def _answers(self) -> tuple[Array, Flags, Flags]:
        """``_first``, with the queries that have no hit; and which these are."""
        first = self.relevant[:, 0]
        known = first != -1
        return self.held_out[known, 0], first[known] == 1, first[known] == NO_HIT

    def guarantee(
        self,
        *,
        precision: float | None = None,
        recall: float | None = None,
        false_match_rate: float | None = None,
        false_positive_identification_rate: float | None = None,
        confidence: float = 0.95,
        open_set_fraction: Fraction | None = None,
    ) -> DecisionRule:
        """Return the rule that answers most and keeps one of these rates.

        Parameters
        ----------
        precision : float in (0, 1)
            Share of the accepted first hits that are relevant, at least. Holds for the share of
            open-set queries that calibrated it: see ``DecisionRule.precision_at``.
        recall : float in (0, 1)
            Share of the relevant first hits that are accepted, at least.
        false_match_rate, false_positive_identification_rate : float in (0, 1)
            At most; see the module. They do not depend on the share of open-set queries.
        confidence : float in (0, 1)
        open_set_fraction : float in (0, 1) or OpenSetFraction, optional
            Share of the queries without a match for which a precision is to hold, if it is another
            than the calibration's. Proven for a share that is known; for an estimate, which counts
            with its upper bound, simulated.

        Raises
        ------
        InputError
            Unless one rate is given; if it cannot be guaranteed, with what would do; for another
            rate than a precision, or a share, of a calibration by ``cross_fit=5`` alone; for an
            estimated share where more than the share moved.
        """
        asked = {
            "precision": precision,
            "recall": recall,
            "false_match_rate": false_match_rate,
            "false_positive_identification_rate": false_positive_identification_rate,
        }
        given = {name: rate for name, rate in asked.items() if rate is not None}
        if len(given) != 1:
            raise InputError(f"pass one of {', '.join(f'{name}=' for name in asked)}.")
        ((quantity, rate),) = given.items()
        target = check_share(quantity, rate)
        if open_set_fraction is not None and quantity != "precision":
            raise InputError(f"open_set_fraction= is for precision=: no share moves {quantity}.")
        of_classes = quantity == "false_positive_identification_rate" and len(self.unseen) > 0
        by = self
        if not of_classes and (quantity != "precision" or open_set_fraction is not None):
            by = self._by_halves(
                f"{quantity if open_set_fraction is None else 'open_set_fraction'}="
            )
        if quantity in ("precision", "recall"):
            return by._of_answers(quantity, target, confidence, open_set_fraction)
        (false, of), delta = by._false(quantity), 1 - check_share("confidence", confidence)
        kept = threshold_of_false(false, target, delta)
        if kept is None:
            least, what = fewest_false(target, delta), "comparisons that are no match, one a query"
            where, advice = "in the tested half, which has", "Calibrate on more, or ask for less."
            if of_classes:
                what, where, advice = "new classes", "and there are", "Ask for less."
            elif quantity == "false_positive_identification_rate":
                what = "queries without a match in the collection (mated=0)"
            drawn = f", worth {len(false):,} as the lists differ in length" if of >= least else ""
            raise InputError(
                f"{quantity}={target:g} cannot be guaranteed: it takes {least:,} {what}, {where} "
                f"{of:,}{drawn}. {advice}"
            )
        value, bound = kept
        rule = DecisionRule(by, value, quantity, target, confidence, 0.0, bound, of)
        return replace(rule, estimate=rule.rates()[quantity])

    def _of_answers(
        self, quantity: str, target: float, confidence: float, fraction: Fraction | None
    ) -> DecisionRule:
        """A precision or recall; of a share on a sample of the held-out queries that has it."""
        (p, right, abstained), level = self._answers(), confidence
        if fraction is not None:
            share, left = level_at_fraction(fraction, 1 - check_share("confidence", confidence))
            rows = rows_at_fraction(np.where(self.relevant[:, 0] >= 0, self.mated, -1), share)
            p, right, level = self.held_out[rows, 0], self.relevant[rows, 0] == 1, 1 - left
            abstained = np.zeros(len(rows), bool)
        grid = self.grid if quantity == "precision" and len(self.grid) else None
        found = threshold_for(
            p,
            right,
            precision=target if quantity == "precision" else None,
            recall=target if quantity == "recall" else None,
            confidence=level,
            abstained=abstained,
            thresholds=grid,
        )
        return DecisionRule(
            self,
            found.value,
            quantity,
            target,
            confidence,
            found.estimate,
            found.lower,
            len(p),
            fraction,
        )

    def _false(self, quantity: str) -> tuple[Array, int]:
        """Probabilities that should be rejected, independent ones; and of how many units.

        A unit is a query or a new class. A query has as many chances to be drawn as it has
        comparisons that are no match, so that each of these is as likely as any other.
        """
        if quantity == "false_positive_identification_rate":
            if not len(self.unseen):
                false = self.held_out[(self.mated == 0) & (self.relevant[:, 0] != NO_HIT), 0]
                return false, len(false)
            order = np.random.default_rng(0).permutation(len(self.unseen))
            false = self.unseen[order][np.unique(self.unseen_class[order], return_index=True)[1]]
            return false, len(false)
        wrong = self.relevant == 0
        n, count = len(wrong), wrong.sum(1)
        # every place is drawn equally often: the draw is the same one each time, and independent
        # draws would have a place too rarely in all calibrations with as many queries
        place = (np.random.default_rng(0).permutation(n) * count.max(initial=0)) // n
        drawn = wrong & (wrong.cumsum(1) == place[:, None] + 1)  # none where place >= count
        return self.held_out[drawn], int((count > 0).sum())

    def with_new_classes(
        self, scores: ArrayLike, classes: ArrayLike, **evidence: ArrayLike
    ) -> ScoreCalibration:
        """Return this calibration with a false positive identification rate of new classes.

        A new class is one draw, however many queries it has: the rate is tested on one query a
        class. Proven for classes drawn as these were, if they are neither in the collection nor
        among the queries that fitted the probability. Leave-class-out, where each class of the
        collection is taken out in turn, is simulated and measured.

        Parameters
        ----------
        scores : [m, k] or [m, k, S]
            Of queries searched in a collection without their class.
        classes : [m]
            Their classes: numbers or text.
        **evidence : [m] or [m, k]

        Raises
        ------
        InputError
            As ``probability``; for another number of classes than queries.
        """
        p, named = self._assessed(scores, evidence)[:, 0], as_array("classes", classes)
        if named.shape != p.shape:
            raise InputError(
                f"classes has shape {named.shape}: pass one for each of {len(p)} rows."
            )
        p, named = p[p > NEVER], named[p > NEVER]  # without a hit nothing could be accepted
        numbers = np.unique(named, return_inverse=True)[1].astype(np.float64)
        return replace(self, unseen=p, unseen_class=numbers)

    def queries_needed(self, precision: float, confidence: float = 0.95) -> QueriesNeeded:
        """Estimate how many more queries it takes to guarantee a precision.

        Raises
        ------
        InputError
            For shares outside (0, 1).
        """
        p, right, abstained = self._answers()
        return queries_needed(
            p,
            right,
            precision=precision,
            confidence=confidence,
            abstained=abstained,
            thresholds=self.grid if len(self.grid) else None,
        )

    def keep_relevant(self, scores: ArrayLike, miss: float, **evidence: ArrayLike) -> Any:
        """Return how many of the first hits to pass on [Q], so that few relevant items are lost.

        The expected share of a query's relevant items that is left out is at most ``miss``, for
        queries that have one: on average over calibration sets, by conformal risk control.

        Raises
        ------
        InputError
            If the share cannot be guaranteed; as ``probability``.
        """
        by = self._by_halves("keep_relevant")
        t = threshold_of_miss(by.held_out, by.relevant, by.total, check_share("miss", miss))
        return (highest_behind(by._assessed(scores, evidence)) >= t).sum(1)

    def save(self, path: str | Path) -> None:
        """Write one file; ``ScoreCalibration.load`` reads it, without torch.

        Parameters
        ----------
        path : path
            Name of a safetensors file, such as "scores.safetensors".

        Raises
        ------
        WriteError
            If it cannot be written; an old file is kept.
        """
        write(as_path("path", path), _part(self))

    @classmethod
    def load(cls, path: str | Path) -> ScoreCalibration:
        """Read the file of ``save``, or of ``DecisionRule.save``.

        Raises
        ------
        FileFormatError
            For a file that is not ours, damaged or newer.
        """
        saved = SavedFile(as_path("path", path), torch=False)
        with saved.checked():
            return _calibration_of(saved.part(SCORES))


@dataclass(frozen=True, repr=False)
class DecisionRule(Shown):
    """Accept a first hit whose match probability is at least ``value``.

    Parameters
    ----------
    calibration : ScoreCalibration
    value : float in [0, 1]
    quantity : str
        The rate that is guaranteed: precision and recall are at least ``target``, a false match
        rate and a false positive identification rate at most.
    target, confidence : float
        The guarantee, and the probability with which it holds.
    estimate, bound : float
        The rate on held-out queries, and the bound of its test.
    n : int
        Held-out queries, or new classes, that the test rests on; of a false match rate those with
        a comparison that is no match.
    open_set_fraction : float or OpenSetFraction or None
        Share of the queries without a match for which it holds; None: that of the calibration.
    """

    calibration: ScoreCalibration
    value: float
    quantity: str
    target: float
    confidence: float
    estimate: float
    bound: float
    n: int
    open_set_fraction: Fraction | None = None

    def __str__(self) -> str:
        side = "at least" if self.quantity in ("precision", "recall") else "at most"
        rule, score = f"a match probability of at least {self.value:.4f}", self.score
        if score is None or not np.isfinite(score):
            rule = f"accept a first hit with {rule}"
        else:
            kind = self.calibration.kinds[0]
            order = "less" if kind == "distance" else "more"
            rule = f"accept a {kind} of {score:.6g} or {order} ({rule})"
        tested = self._tested()
        return (
            f"{rule}: {self.quantity.replace('_', ' ')} {side} {100 * self.target:g}% with "
            f"{100 * self.confidence:g}% confidence"
            f"{' (simulated, not proven)' if tested.startswith('cross') else ''}{self._where()}; "
            f"on {self.n:,} {tested} "
            f"{self.estimate:.2%}, and {self.rates()['coverage']:.1%} of all are answered"
        )

    def _tested(self) -> str:
        if self.quantity == "false_positive_identification_rate" and len(self.calibration.unseen):
            return "new classes"
        return "cross-fitted queries" if self.calibration.cross_fitted else "held-out queries"

    def _where(self) -> str:
        if self.open_set_fraction is None:
            return ""
        return f" where {point_of(self.open_set_fraction):.1%} of the queries have no match"

    def _sentence(self) -> str:
        return str(self)

    def _shown_rows(self) -> Rows:
        return in_rows((name, f"{rate:.2%}") for name, rate in self.rates().items())

    @property
    def score(self) -> float | None:
        """Smallest similarity or score, or largest distance, that is accepted, to the last bit.

        None where more decides: other hits of the query, further scorers or evidence. Infinite
        where all are accepted, or none.
        """
        model = self.calibration.model
        if model.weights[1:].any():
            return None
        unit = np.eye(len(model.weights))[0]
        low, high = -1.0, 1.0
        while model(low * unit) >= self.value and low > -LARGEST:
            low *= 2
        while model(high * unit) < self.value and high < LARGEST:
            high *= 2
        while low < (middle := low + (high - low) / 2) < high:
            low, high = (low, middle) if model(middle * unit) >= self.value else (middle, high)
        if low <= -LARGEST or high >= LARGEST:
            high = -np.inf if low <= -LARGEST else np.inf
        return -high if self.calibration.kinds[0] == "distance" else high

    def accept(self, scores: ArrayLike, **evidence: ArrayLike) -> Flags:
        """Return whether to accept the first hit of each query [Q]; abstain elsewhere.

        A query without a hit is never accepted.

        Raises
        ------
        InputError
            As ``ScoreCalibration.probability``.
        """
        p = self.calibration._assessed(scores, evidence)[:, 0]
        return np.asarray((p > NEVER) & (p >= self.value))

    def rates(self) -> dict[str, float]:
        """Return the rates of this rule on held-out queries; those of no query are left out.

        Coverage of all queries, precision of the first hits; FMR and FNMR of all comparisons (1:1),
        which places without a hit are not; FPIR of queries without a match in the collection that
        have a hit, and FNIR of queries with a match (1:N). With new classes the FPIR is theirs, and
        each class counts once.
        """
        c = self.calibration
        rates = error_rates(self.value, c.held_out, c.relevant, c.mated)
        if len(c.unseen):
            accepted, of = c.unseen >= self.value, c.unseen_class.astype(int)
            each = np.bincount(of, accepted) / np.bincount(of)
            rates["false_positive_identification_rate"] = float(each.mean())
        return rates

    def precision_at(self, open_set_fraction: ArrayLike) -> tuple[Array, Array]:
        """Return precision and its lower bound where this share of the queries has no match.

        See ``precision_of_mixture``; the bound holds with the ``confidence`` of the rule for one
        threshold that was fixed before; this one was chosen for ``target``. Of a cross-fitted
        calibration that is not simulated: calibrate with ``cross_fit=0``.

        Parameters
        ----------
        open_set_fraction : [...] in [0, 1]

        Raises
        ------
        InputError
            For shares outside [0, 1], and without held-out queries of both kinds.
        """
        share = as_floats("open_set_fraction", open_set_fraction)
        if not ((share >= 0) & (share <= 1)).all():
            raise InputError("open_set_fraction lies outside [0, 1]: pass shares.")
        c = self.calibration
        return precision_of_mixture(
            share,
            self.value,
            c.held_out[:, 0],
            c.relevant[:, 0],
            c.mated,
            1 - self.confidence,
        )

    def save(self, path: str | Path) -> None:
        """Write one file; ``DecisionRule.load`` reads it, without torch.

        Parameters
        ----------
        path : path
            Name of a safetensors file, such as "rule.safetensors".

        Raises
        ------
        WriteError
            If it cannot be written; an old file is kept.
        """
        asked: dict[str, Any] = {
            "quantity": self.quantity,
            "target": self.target,
            "confidence": self.confidence,
        }
        share = self.open_set_fraction
        asked["open_set_fraction"] = asdict(share) if isinstance(share, OpenSetFraction) else share
        parts = {"scores": _part(self.calibration), "rule": Part(RULE, asked)}
        write(as_path("path", path), parts)

    def export(
        self, path: str | Path, format: str = "onnx", *, dtype: torch.dtype | None = None
    ) -> RuleGraph:
        """Write probability and accept as one graph, for any number of queries.

        It answers as this rule does, but for probabilities within a rounding (1e-12) of ``value``.

        Parameters
        ----------
        path : path
            Of one file, which is replaced.
        format : "onnx" | "torch"
            ONNX of opset 18 (extra ``export``), or what ``torch.export.load`` reads.
        dtype : torch.float32 or torch.float64, optional
            Of what enters and leaves; None: float32. It computes in float64.

        Raises
        ------
        InputError, ExportError
            For another ``dtype``; for evidence with the name of an output.
        MissingPackageError
            For "onnx" without the packages onnx and onnxscript.
        """
        from laplace_metric.calibration._export import RuleModule, write_rule

        c = self.calibration
        return write_rule(
            RuleModule(c.model, c.kinds, c.k, self.value),
            as_path("path", path),
            format,
            dtype,
            kinds=c.kinds,
            evidence=c.evidence,
            rule=str(self),
        )

    @classmethod
    def load(cls, path: str | Path) -> DecisionRule:
        """Read the file of ``save``; the threshold is computed again from the held-out queries.

        Raises
        ------
        FileFormatError
            For a file that is not ours, damaged or newer, or that holds no rule.
        """
        saved = SavedFile(as_path("path", path), torch=False)
        if "scores" in saved and "rule" not in saved:
            raise FileFormatError(f"{path} holds a calibration without a rule: load it as one.")
        with saved.checked():
            calibration = _calibration_of(saved.part(SCORES))
            asked = Fields(saved.part(RULE).content, "rule")
            quantity, target = asked.text("quantity", QUANTITIES), asked.share("target")
            confidence, fraction = asked.share("confidence"), _fraction_of(asked)
        try:
            return calibration.guarantee(
                **{quantity: target}, confidence=confidence, open_set_fraction=fraction
            )
        except (InputError, *MALFORMED) as error:
            raise FileFormatError(f"{path} holds a rule that does not follow from it.") from error


# A file of numbers.

ARRAYS = ("held_out", "relevant", "mated", "total", "grid", "unseen", "unseen_class")
JUDGED = ("relevant", "mated")
QUANTITIES = ("precision", "recall", "false_match_rate", "false_positive_identification_rate")
ESTIMATED = ("estimate", "upper", "p_value")
KINDS = ("similarity", "distance", "score")


def _part(c: ScoreCalibration) -> Part:
    content, arrays = _content(c), _arrays(c)
    if c.halves is not None:
        content["halves"] = _content(c.halves)
        arrays |= {f"halves.{name}": array for name, array in _arrays(c.halves).items()}
    return Part(SCORES, content, arrays)


def _content(c: ScoreCalibration) -> dict[str, Any]:
    content = {"kinds": list(c.kinds), "k": c.k, "evidence": list(c.evidence), "chosen": c.chosen}
    model = {"offset": c.model.offset, "calibrator": c.model.calibrator.kind}
    return {**content, "losses": dict(c.losses), **model}


def _arrays(c: ScoreCalibration) -> dict[str, Any]:
    model = {"weights": c.model.weights, "calibrator": c.model.calibrator.numbers}
    types = {name: np.int8 if name in JUDGED else np.float64 for name in ARRAYS}
    return {**model, **{name: np.asarray(getattr(c, name), types[name]) for name in ARRAYS}}


def _calibration_of(part: Part) -> ScoreCalibration:
    content, halves = Fields(part.content, "scores"), None
    if "halves" in content:
        below = {n.removeprefix("halves."): a for n, a in part.arrays.items() if "." in n}
        halves = _one_of(content.inner("halves"), below, None)
    return _one_of(content, part.arrays, halves)


def _one_of(
    content: Fields, arrays: Mapping[str, Any], halves: ScoreCalibration | None
) -> ScoreCalibration:
    k, kinds = content.whole("k", least=1), tuple(content.items("kinds"))
    losses = content.inner("losses")
    chosen = content.text("chosen", tuple(losses.content))
    features = chosen.split(", ")[0]
    if not kinds or not set(kinds) <= set(KINDS) or features not in FEATURES:
        raise FileFormatError(f"scores.kinds are {list(kinds)!r:.60}, scores.chosen {chosen!r:.60}")

    def numbers(name: str, *shape: int | None, least: float = 0.0, most: float = np.inf) -> Any:
        array, dtype = arrays.get(name), "int8" if name in JUDGED else "float64"
        return checked_array(f"scores/{name}", array, shape, dtype=dtype, least=least, most=most)

    mated = numbers("mated", None, least=-1, most=1)
    n, unseen = len(mated), numbers("unseen", None, most=1)
    if not n:
        raise FileFormatError("scores/mated is empty")
    held_out, evidence = numbers("held_out", n, k, most=1), content.items("evidence")
    relevant = numbers("relevant", n, k, least=NO_HIT, most=1)
    if held_out[relevant == NO_HIT].any():
        raise FileFormatError("scores/held_out holds a probability where there is no hit")
    hits = np.zeros((1, k, len(kinds))), np.ones((1, k), bool)
    width = score_features(*hits, [np.zeros((1, k))] * len(evidence)).shape[-1]
    calibrator = calibrator_of(content.text("calibrator", CALIBRATORS), arrays.get("calibrator"))
    return ScoreCalibration(
        kinds,
        k,
        tuple(evidence),
        chosen,
        {name: losses.number(name) for name in losses.content},
        ScoreModel(numbers("weights", width, least=-np.inf), content.number("offset"), calibrator),
        held_out=held_out,
        relevant=relevant,
        mated=mated,
        total=numbers("total", n),
        grid=numbers("grid", None, most=1),
        unseen=unseen,
        unseen_class=numbers("unseen_class", len(unseen)),
        halves=halves,
    )


def _fraction_of(asked: Fields) -> Fraction | None:
    if "open_set_fraction" not in asked:
        return None
    if not isinstance(asked.content["open_set_fraction"], dict):
        return asked.share("open_set_fraction")
    estimated = asked.inner("open_set_fraction")
    shares = {name: estimated.number(name, least=0, most=1) for name in ESTIMATED}
    return OpenSetFraction(**shares, n=estimated.whole("n"))
