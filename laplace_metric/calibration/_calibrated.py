"""A calibration from held-out queries, tested by those that a fit did not see."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from laplace_metric._utils.validation import check_count
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._conformal import (
    first_match_score,
    least_common_p_values,
    own_p_values,
)
from laplace_metric.calibration._counted_once import counted_once, warn_of_copies
from laplace_metric.calibration._group_column import check_enough, split_by_group
from laplace_metric.calibration._hits import LabelledHits, mapped_arrays
from laplace_metric.calibration.labels._label_posterior import Candidates, LabelPosterior
from laplace_metric.calibration.labels._label_sets import HeldOutLabels, label_scores
from laplace_metric.calibration.labels._label_shares import HeldOutShares, LabelShares
from laplace_metric.calibration.probability._features import (
    PairFeatures,
    epistemic_weight,
    query_statistics,
    statistic_weights,
)
from laplace_metric.calibration.probability._held_out import (
    FEW,
    MOST_PARTS,
    PARTS,
    fit_and_judge,
    on_answering_scale,
)
from laplace_metric.calibration.probability._match_probability import (
    MatchProbability,
    fit_match_probability,
)
from laplace_metric.errors import InputError

LEAST_KNOWN = 5
"""Held-out queries with a match in the index that each half needs at the very least."""
LEAST = 20
"""Held-out queries, half of which or more are fitted."""


@dataclass(frozen=True)
class _Fit:
    """Match probability and, with labels, the probability of each label."""

    matcher: MatchProbability
    labeller: LabelPosterior | None

    @classmethod
    def fitted_to(
        cls, labelled: LabelledHits, k: int, *, portable: bool, like: _Fit | None = None
    ) -> _Fit:
        """Fit to these queries, with the features and calibrator that ``like`` chose."""
        features, chosen = PairFeatures.of(labelled.hits), None if like is None else like.matcher
        matcher = fit_match_probability(
            features.take(k), labelled.match[:, :k], portable=portable, like=chosen
        )
        if labelled.codes is None:
            return cls(matcher, None)
        candidates = Candidates.of(matcher.logit(features), labelled.hits.voted)
        return cls(matcher, LabelPosterior.fit(candidates, labelled.match))

    def judge(self, labelled: LabelledHits, k: int) -> _Judged:
        logit = self.matcher.logit(PairFeatures.of(labelled.hits))
        first_match = first_match_score(logit, labelled.match)
        judged = _Judged(self.matcher(logit[:, :k]), first_match)
        if self.labeller is None:
            return judged
        candidates = Candidates.of(logit, labelled.hits.voted)
        answer, probability = self.labeller.answer(candidates)
        posterior = self.labeller(candidates)
        scores = label_scores(posterior, labelled.hits.voted.labels)
        return replace(
            judged,
            posterior=posterior,
            label_probability=probability,
            right=np.take_along_axis(labelled.match, answer[:, None], 1)[:, 0],
            answer=np.take_along_axis(labelled.hits.voted.labels, answer[:, None], 1)[:, 0],
            own_label=np.where(labelled.match, scores, -np.inf).max(1),
        )


@dataclass(frozen=True)
class _Judged:
    """Fields of a ``Calibration`` of the same names, and the score [Q] of each own label."""

    probability: Float[np.ndarray, "Q k"]
    first_match: Float[np.ndarray, " Q"]
    label_probability: Float[np.ndarray, " Q"] | None = None
    right: Bool[np.ndarray, " Q"] | None = None
    own_label: Float[np.ndarray, " Q"] | None = None
    answer: Int[np.ndarray, " Q"] | None = None
    posterior: Float[np.ndarray, "Q V"] | None = None
    answering: Float[np.ndarray, "Q V"] | None = None
    """Probability of each label by the fit that answers, where another one has judged."""

    def on_scale_of(self, answering: _Judged) -> _Judged:
        """Return the same tests with the probabilities that the fit which answers would give."""
        p, of_labels = self.probability, self.label_probability
        p = on_answering_scale(p, answering.probability, answering.probability > 0)
        if of_labels is not None:
            assert answering.label_probability is not None
            pair = of_labels[:, None], answering.label_probability[:, None]
            of_labels = on_answering_scale(*pair, np.ones_like(pair[0], bool))[:, 0]
        answers = answering.posterior
        return replace(self, probability=p, label_probability=of_labels, answering=answers)


def calibrated(
    labelled: LabelledHits,
    k: int,
    n_items: int,
    order: npt.NDArray[np.int64],
    *,
    cross_fit: int | None = None,
    portable: bool = False,
    own_items: bool = False,
    covers_fit: bool = False,
    group: npt.NDArray[np.intp] | None = None,
) -> Calibration:
    """Fit to the queries in ``order`` [Q], and test by queries that a fit did not see.

    Copies count once (``LabelledHits.same``): of equal queries the first in ``order`` fits and
    tests, with others of its group. A guarantee is then one of distinct queries.

    Parameters
    ----------
    labelled : LabelledHits
        Hits of the calibration queries.
    k : int
        Number of neighbours to which the match probability is fitted.
    n_items : int
        Number of items of the index.
    order : [Q]
        Random order of the queries, by which they are split.
    cross_fit : int or None
        Number of parts, each of which tests a fit to the others; the calibration then has the fit
        to all. With 0 it has the fit to the first half, and the second half tests it. None, the
        default: ``PARTS`` for fewer than ``FEW`` queries, else 0.
    portable : bool
        Leave out what only this index knows. Default: False.
    own_items : bool
        True if the queries are items of the index. Default: False.
    covers_fit : bool
        True if the index has all classes of the fit, so that what the fit knows has a match, and
        the epistemic number may be trusted (``epistemic_weight``). Default: False.
    group : [Q] or None
        Number of the group of each query, none of which fits and tests at once. None, the default:
        queries are independent.

    Raises
    ------
    InputError
        For too few queries, or one part or more than 20.

    Warns
    -----
    DependentQueriesWarning
        If more than a hundredth of the queries are copies of others, of other groups.
    """
    passed, many = len(order), False
    if labelled.same is not None:
        order = counted_once(order, labelled.same, group)
        what = "items" if own_items else "queries"
        therefore = (
            f"Copies count once: {len(order):,} {what} calibrate, and a guarantee is one of "
            "distinct queries, however often each is asked."
        )
        many = warn_of_copies(passed - len(order), passed, what, therefore)
    if group is not None:
        check_enough(len(np.unique(group[order])), f"{len(order):,} queries, without copies,")
    if cross_fit is None:
        cross_fit = PARTS if (len(order) if many else passed) < FEW else 0
    if cross_fit and check_count("cross_fit", cross_fit, least=2) > MOST_PARTS:
        raise InputError(f"cross_fit={cross_fit}: pass 0, or from 2 to {MOST_PARTS} parts.")
    if portable and labelled.hits.votes is not None:  # no other engine has a class model
        votes = replace(labelled.hits.votes, class_odds=None)
        labelled = replace(labelled, hits=replace(labelled.hits, votes=votes))
    if len(order) < LEAST:
        distinct = " distinct" if len(order) < passed else ""
        raise InputError(f"{len(order)}{distinct} queries to calibrate on: pass at least {LEAST}.")
    labelled, rows = labelled.take(order), np.arange(len(order))
    ordered = None if group is None else group[order]
    first, second = split_by_group(rows, ordered, 2)
    _check(labelled.take(first), labelled.take(second))
    kept, fitted, tested, judged = fit_and_judge(
        rows,
        ordered,
        cross_fit,
        lambda of, like: _Fit.fitted_to(labelled.take(of), k, portable=portable, like=like),
        lambda fit, of: fit.judge(labelled.take(of), k),
        _Judged.on_scale_of,
    )
    test = mapped_arrays(judged, lambda values: values[tested])
    tops = [p for p in (judged.probability[:, 0], judged.label_probability) if p is not None]
    statistics, known = query_statistics(labelled.hits), labelled.known
    p_value = np.empty(len(known))
    trusted = epistemic_weight(statistics[known]) if covers_fit else 1
    weights = statistic_weights(trusted)
    # by the others, as the next query by all
    p_value[known] = own_p_values(statistics[known], weights)
    p_value[~known] = least_common_p_values(statistics[known], statistics[~known], weights)
    labels = None
    if labelled.codes is not None and labelled.classes is not None:
        assert judged.own_label is not None
        halves = [half[known[half]] for half in (first, second)]
        of_halves = [(labelled.codes[half], judged.own_label[half]) for half in halves]
        labels = HeldOutLabels(labelled.classes, *of_halves[0], *of_halves[1])
    shares = None
    if judged.posterior is not None and labelled.codes is not None:
        voted = labelled.hits.voted.labels
        others = judged.posterior[fitted] if judged.answering is None else judged.answering
        shares = HeldOutShares(
            LabelShares.of(judged.posterior[tested], voted[tested]),
            LabelShares.of(others, voted[fitted]),
            labelled.codes[tested].astype(np.int64),
        )
    return Calibration(
        matcher=kept.matcher,
        labeller=kept.labeller,
        k=k,
        depth=labelled.match.shape[1],
        n_items=n_items,
        probability=test.probability,
        match=labelled.match[tested, :k],
        known=known[tested],
        first_match=test.first_match,
        statistics=statistics[known],
        p_value=p_value[tested],
        grid=np.column_stack(tops)[[] if cross_fit else fitted],
        label_probability=test.label_probability,
        right=test.right,
        labels=labels,
        own_items=own_items,
        answer=np.empty(0) if test.answer is None else test.answer.astype(np.float64),
        group=np.empty(0) if ordered is None else ordered[tested].astype(np.float64),
        shares=shares,
        epistemic_weight=trusted,
        simulated=labelled.simulated is not None and bool(labelled.simulated.any()),
    )


def _check(*halves: LabelledHits) -> None:
    n_known = min(int(half.known.sum()) for half in halves)
    if n_known < LEAST_KNOWN:
        raise InputError(
            f"{n_known} queries of a random half have a match in the index: at least {LEAST_KNOWN} "
            "are needed. Pass more queries that have one, or a smaller open_set_fraction= if one "
            "was passed."
        )
