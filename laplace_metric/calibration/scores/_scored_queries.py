"""Scores of any search -> match probabilities, with the queries that test what they are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import ArrayLike, as_array, check_share
from laplace_metric.calibration._array_namespace import Array
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._open_set_fraction import (
    Fraction,
    OpenSetFraction,
    at_fraction,
    estimated_fraction,
)
from laplace_metric.calibration.guarantees._risk_control import highest_behind, threshold_of_miss
from laplace_metric.calibration.guarantees._test_sequences import NEVER
from laplace_metric.calibration.scores._answer_classes import AnswerClasses
from laplace_metric.calibration.scores._score_features import (
    checked_scores,
    evidence_column,
    first_hits,
    score_features,
)
from laplace_metric.calibration.scores._score_model import ListModel
from laplace_metric.calibration.scores._score_scale import ScoreScale, check_kind
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import Fields, Kind, Part, record, restored, saved

if TYPE_CHECKING:
    from typing_extensions import Self

SCORES = Kind("scores", "a saved calibration of scores", 5)
FUSED = "fused"
KINDS = ("similarity", "distance", "score", FUSED)
FEATURES = {
    "value": "the score alone",
    "values": "the scores alone",
    "list": "the score and the other hits of its query",
    "evidence": "the score, the other hits of its query and the evidence",
}


@dataclass(frozen=True, repr=False, eq=False)
class ScoredQueries(Shown):
    """Match probabilities of scored hits, and the queries that test them.

    Parameters
    ----------
    kinds : tuple of "similarity" | "distance" | "score" | "fused"
        Meaning of the scores, one entry per scorer.
    k : int
        Number of hits of each query.
    evidence : tuple of str
        Names of further columns.
    model : ListModel
        Fit that answers later queries: features -> probability.
    queries : CalibrationQueries
        Queries with probabilities by a fit that did not see them; cross-fitted if they were tested
        in parts.
    scale : ScoreScale
        Distribution of the scores and the evidence that calibrated it.
    halves : ScoredQueries or None
        The same queries by halves, if they are cross-fitted, for rates that only halves can
        guarantee. None, the default: not computed.
    answers : AnswerClasses or None
        Class of the first hit of each of ``queries``, for a precision of each class. None, the
        default: not known.
    """

    kinds: tuple[str, ...]
    k: int = saved(least=1)
    evidence: tuple[str, ...] = saved()
    model: ListModel = saved()
    queries: CalibrationQueries = saved()
    scale: ScoreScale = saved()
    halves: Self | None = None
    answers: AnswerClasses | None = None

    @property
    def chosen(self) -> str:
        """Features and calibrator of first hits, with the smallest cross-validated log loss."""
        return self.model.first.chosen

    @property
    def losses(self) -> Mapping[str, float]:
        """Cross-validated log loss of every candidate, over first hits."""
        return {name: loss for name, (loss, _) in self.model.first.losses.items()}

    @property
    def cross_fitted(self) -> bool:
        """True if each query is tested by a fit to others: precision is simulated, not proven."""
        return self.queries.cross_fitted

    def _sentence(self) -> str:
        features, calibrator = self.chosen.split(", ")
        tested = "cross-fitted " if self.cross_fitted else "held-out "
        tested = "" if self.queries.one_score else tested
        return (
            f"match probability by {FEATURES[features]}, {calibrator}; tested on "
            f"{len(self.queries):,} {tested}queries."
        )

    def _shown_rows(self) -> Rows:
        judged = self.queries.relevant[:, 0] >= 0
        p, right = self.queries.probability[judged, 0], self.queries.relevant[judged, 0] == 1
        mated = self.queries.mated
        return in_rows(
            {
                "hits of a query": self.k,
                "first hit is relevant": f"{right.mean():.1%} of {len(right):,} judged",
                "open-set queries": f"{int((mated == 0).sum()):,} of {len(mated):,}",
                "mean probability of the first hit": f"{p.mean():.1%}",
            }.items()
        )

    def probability(
        self,
        scores: ArrayLike,
        *,
        open_set_fraction: Fraction | None = None,
        kind: str | Sequence[str] | None = None,
        **evidence: ArrayLike,
    ) -> Array:
        """Return the match probability of each hit, [Q, k] or [Q] as the scores; 0 for no hit.

        Parameters
        ----------
        scores : [Q], [Q, k] or [Q, k, S]
            Scores as for ``calibrate_scores``: the same scorers, in the same order, and as many
            hits, or more places of which those beyond k are empty.
        open_set_fraction : float in (0, 1), OpenSetFraction or None
            Share of the later queries that have no match. None, the default: the share among the
            calibration queries.
        kind : str, one per scorer, or None
            Meaning of the scores, to be compared with that of ``calibrate_scores``. None, the
            default: it is not compared.
        **evidence : [Q] or [Q, k]
            Columns that calibrated it, by name.

        Raises
        ------
        InputError
            For other shapes or columns than those that calibrated it, NaN, scores that are not
            sorted, another ``kind``, and scores that are better than all that calibrated by more
            than the width of their range, as those of another unit are.

        Warns
        -----
        ScoresWarning
            If scores or evidence of these queries, or of the last 20 or 100 that came a few at a
            time, are of another distribution than those that calibrated, or better than all of
            them more often than chance explains. A larger share of open-set queries is another
            distribution, too. For fewer than ten queries, if evidence is of another unit.
        """
        p = self.assessed(scores, evidence, kind).clip(0)
        if open_set_fraction is not None:
            held = self.queries
            has_hit = held.relevant[:, 0] != NO_HIT
            p = at_fraction(p, open_set_fraction, held.probability[:, 0], has_hit, held.mated)
        return p[:, 0] if np.ndim(scores) == 1 else p

    def assessed(
        self,
        scores: ArrayLike,
        evidence: Mapping[str, ArrayLike],
        kind: str | Sequence[str] | None = None,
        *,
        alike: bool = True,
    ) -> Array:
        """Return match probabilities [Q, k], and ``NEVER`` where there is no hit.

        Parameters
        ----------
        scores : [Q], [Q, k] or [Q, k, S]
            Scores as for ``probability``.
        evidence : dict of str to [Q] or [Q, k]
            Columns that calibrated it, by name.
        kind : str, one per scorer, or None
            Meaning of the scores, as for ``probability``. None, the default: it is not compared.
        alike : bool
            True if the queries should be like those that calibrated: it warns where their scores
            are not. Default: True.

        Raises
        ------
        InputError
            As ``probability``.
        """
        check_kind(kind, self.kinds)
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
        first = first_hits(values, exists, columns, self.kinds)
        # places beyond k are empty, as of lists that were padded to another length
        values, exists = values[:, : self.k], exists[:, : self.k]
        if len(first):
            self.scale.refuse_beyond(first, self.kinds)
            if alike:
                lists = values.reshape(len(values), -1)[exists[:, 0]]
                self.scale.warn_if_unlike(first, self.kinds, self.evidence, lists)
        columns = [column[:, : self.k] for column in columns]
        return np.where(exists, self.model(score_features(values, exists, columns)), NEVER)

    def open_set_fraction(
        self, scores: ArrayLike, *, kind: str | Sequence[str] | None = None, **evidence: ArrayLike
    ) -> OpenSetFraction:
        """Estimate the share of queries without a match among those that have a hit.

        It assumes that only that share moved, and tests it: see ``OpenSetFraction.p_value``.

        Parameters
        ----------
        scores : [Q], [Q, k] or [Q, k, S]
            Scores of new queries, at least 30 with a hit, as for ``probability``.
        kind : str, one per scorer, or None
            Meaning of the scores, as for ``probability``. None, the default: it is not compared.
        **evidence : [Q] or [Q, k]
            Columns that calibrated it, by name.

        Raises
        ------
        InputError
            As ``probability``; for fewer than 30 new queries, or held-out ones of a kind.
        """
        by = self.halves or self
        new, tested = by.assessed(scores, evidence, kind, alike=False)[:, 0], by.queries
        has_hit = tested.relevant[:, 0] != NO_HIT
        mated, open_set = (
            tested.probability[has_hit & (tested.mated == kind), 0] for kind in (1, 0)
        )
        return estimated_fraction(new[new > NEVER], mated, open_set)

    def by_halves(self, what: str) -> Self:
        """Return the same queries by halves, if they are cross-fitted.

        Cross-fitted, a recall was broken in up to 9 % of simulations, not 5 %, an FPIR in 8 %.

        Raises
        ------
        InputError
            If they were not tested by halves, too.
        """
        if not self.cross_fitted:
            return self
        if self.halves is None:
            raise InputError(f"{what} takes queries held out: calibrate with cross_fit=0.")
        return self.halves

    def with_new_classes(
        self,
        scores: ArrayLike,
        classes: ArrayLike,
        *,
        kind: str | Sequence[str] | None = None,
        **evidence: ArrayLike,
    ) -> Self:
        """Return this calibration with a false positive identification rate of new classes.

        A new class is one draw, however many queries it has: the rate is tested on one query a
        class. Proven for classes drawn as these were, if they are neither in the collection nor
        among the queries that fitted the probability. Leave-class-out, where each class of the
        collection is taken out in turn, is simulated and measured.

        Parameters
        ----------
        scores : [m, k] or [m, k, S]
            Scores of queries that were searched in a collection without their class.
        classes : [m]
            Class of each of these queries: numbers or text.
        kind : str, one per scorer, or None
            Meaning of the scores, as for ``probability``. None, the default: it is not compared.
        **evidence : [m] or [m, k]
            Columns that calibrated it, by name.

        Raises
        ------
        InputError
            As ``probability``; for another number of classes than queries.
        """
        p = self.assessed(scores, evidence, kind, alike=False)[:, 0]
        named = as_array("classes", classes)
        if named.shape != p.shape:
            raise InputError(
                f"classes has shape {named.shape}: pass one for each of {len(p)} rows."
            )
        if named.dtype.kind == "O" and all(isinstance(one, str) for one in named):
            named = named.astype(str)
        if named.dtype.kind == "O" or (named.dtype.kind == "f" and not np.isfinite(named).all()):
            raise InputError("classes are of several types or missing: pass numbers, or strings.")
        p, named = p[p > NEVER], named[p > NEVER]  # without a hit nothing could be accepted
        if not len(p):
            raise InputError("scores: no query of a new class has a hit: none could be accepted.")
        numbers = np.unique(named, return_inverse=True)[1].astype(np.float64)
        queries = replace(self.queries, unseen=p, unseen_class=numbers)
        return replace(self, queries=queries)

    def keep_relevant(
        self,
        scores: ArrayLike,
        miss: float,
        *,
        kind: str | Sequence[str] | None = None,
        **evidence: ArrayLike,
    ) -> Any:
        """Return how many of the first hits to pass on [Q], so that few relevant items are lost.

        The expected share of a query's relevant items that is left out is at most ``miss``, for
        queries that have one: on average over calibration sets, by conformal risk control. Of
        groups of queries it is exact if they are of one size, or if no later one is larger than the
        largest here; the larger that is, the more groups it takes.

        Parameters
        ----------
        scores : [Q], [Q, k] or [Q, k, S]
            Scores as for ``probability``.
        miss : float in (0, 1)
            Largest expected share of relevant items that is left out. A smaller one passes on more
            hits.
        kind : str, one per scorer, or None
            Meaning of the scores, as for ``probability``. None, the default: it is not compared.
        **evidence : [Q] or [Q, k]
            Columns that calibrated it, by name.

        Raises
        ------
        InputError
            If the share cannot be guaranteed; as ``probability``.

        Warns
        -----
        ScoresWarning
            As ``probability``.
        """
        by = self.by_halves("keep_relevant")
        held_out, share = by.queries, check_share("miss", miss)
        t = threshold_of_miss(
            held_out.probability,
            held_out.relevant,
            held_out.total,
            share,
            int(held_out.group_sizes.max(initial=0)),
        )
        return (highest_behind(by.assessed(scores, evidence, kind)) >= t).sum(1)

    def part(self) -> Part:
        """Return it as a part of a file."""
        return Part(SCORES, *record(self))

    @classmethod
    def of_part(cls, part: Part) -> Self:
        """Restore what ``part`` returned.

        Raises
        ------
        FileFormatError
            If a value is missing, of another type or shape, or out of its range.
        """
        return restored(cls, Fields(part.content, "scores"), part.arrays)

    def check_saved(self) -> None:
        """Refuse kinds, features and hits of a file that do not go together."""
        hits = np.zeros((1, self.k, len(self.kinds))), np.ones((1, self.k), bool)
        evidence = [np.zeros((1, self.k))] * len(self.evidence)
        models = self.model.first, self.model.behind
        known = bool(self.kinds) and set(self.kinds) <= set(KINDS)
        if not known or self.chosen.split(", ")[0] not in FEATURES:
            raise FileFormatError(
                f"scores.kinds are {self.kinds!r:.60}, chosen {self.chosen!r:.60}"
            )
        if self.answers is not None and len(self.answers.codes) != len(self.queries):
            raise FileFormatError("scores/answers has not a class of each query")
        width = score_features(*hits, evidence).values.shape[-1]
        other = {len(model.score.weights) for model in models} != {width}
        if other or self.queries.probability.shape[1] != self.k:
            raise FileFormatError(f"scores has not the weights or the hits of k={self.k}")
        if self.scale.values.shape[1] != len(self.kinds) + len(self.evidence):
            raise FileFormatError(
                "scores/scale.values has not a column of each scorer and evidence"
            )
