"""Queries that no fit has seen, and every guarantee that they can test.

Search results and scores of any search are tested alike: by the probability of each hit, whether it
is relevant, and whether the collection has a match of the query at all. The theories are in
``guarantees``, a file each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int8

from laplace_metric._utils.validation import ArrayLike, as_floats, check_share
from laplace_metric.calibration._arrays import Array, Counts, Flags
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.calibration.guarantees._betting import (
    GroupTests,
    fewest_groups,
)
from laplace_metric.calibration.guarantees._biometric_rates import (
    error_rates,
    fewest_false,
    one_comparison_a_query,
    one_query_a_class,
    threshold_of_false,
)
from laplace_metric.calibration.guarantees._open_set_fraction import (
    Fraction,
    level_at_fraction,
    precision_of_mixture,
    rows_at_fraction,
)
from laplace_metric.calibration.guarantees._precision import largest_precision, lowest_threshold
from laplace_metric.calibration.guarantees._queries_needed import (
    CHANCE,
    QueriesNeeded,
    queries_needed,
)
from laplace_metric.calibration.guarantees._recall import highest_threshold
from laplace_metric.calibration.guarantees._test_sequences import NEVER
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import WHOLE, Kind, saved

QUERIES = Kind("queries", "saved calibration queries", 2)
QUANTITIES = ("precision", "recall", "fmr", "fpir")
"""Rates that can be guaranteed."""
AT_LEAST = ("precision", "recall")
"""Those that are to be at least the target; the others are to be at most that."""
ROUNDING = 1e-9
LEAST_FULL = 0.5
"""Share of the places of all lists that hold a hit, from which on betting answers enough."""
BELOW = 20
"""Extra thresholds between 0 and the smallest first-hit probability, tried for of="hits"."""
NOTHING = np.empty(0)
Rows = npt.NDArray[np.intp]


class Chosen(NamedTuple):
    """A threshold that keeps a rate, and what its test gave.

    Parameters
    ----------
    value : float in [0, 1]
        Smallest probability that is accepted.
    target : float
        The rate that is kept.
    bound : float
        Bound of the rate by the test of this threshold.
    estimate : float
        Rate on the tested queries.
    n : int
        Queries, or new classes, that the test rests on.
    """

    value: float
    target: float
    bound: float
    estimate: float
    n: int

    def check(self, quantity: str) -> None:
        """Refuse a threshold whose own queries do not show what would be guaranteed of it.

        Parameters
        ----------
        quantity : "precision" | "recall" | "fmr" | "fpir"
            Rate that is kept.

        Raises
        ------
        InputError
            If the estimate is on the wrong side of the target.
        """
        least = quantity in AT_LEAST
        above = self.estimate - self.target if least else self.target - self.estimate
        if not above >= -ROUNDING:  # NaN, where nothing is accepted, is refused, too
            raise InputError(
                f"{quantity}={self.target:g} cannot be guaranteed: at the threshold of its test "
                f"these queries show {self.estimate:.4g}, {'less' if least else 'more'} than that. "
                "Ask for less, or calibrate on more queries."
            )


@dataclass(frozen=True, eq=False)
class CalibrationQueries:
    """Probabilities of n queries by a fit that did not see them, and the truth about each.

    Parameters
    ----------
    probability : [n, k]
        Probability that each hit is relevant; or that each answer is right, with k = 1.
    relevant : [n, k]
        Relevance: 1, 0, -1 where a hit was not judged, -2 where there is no hit.
    mated : [n]
        Presence of a relevant item in the collection: 1, 0, or -1 where it is not known.
    total : [n]
        Number of relevant items of each query in the collection.
    grid : [m]
        Probabilities of the first hits of other queries, among which thresholds of a precision are
        chosen. Empty: those of the tested queries.
    abstained : [n]
        Queries that are not answered whatever their probability is, such as unknown ones.
    cross_fitted : bool
        True if each query was tested by another fit than the one that answers: guarantees are then
        simulated, not proven.
    unseen, unseen_class : [m]
        Probabilities of the first hits of queries whose class is not in the collection, and the
        number of their class. Default: empty.
    score : [n]
        Score of each first hit, larger for a match, of which alone the probability is a
        non-decreasing function: nothing is learnt about which hit is better, so that all queries
        test. Default: empty, more than one number decides.
    group : [n]
        Number of the group of each query, from 0: queries of a group depend on each other. Default:
        empty, each is independent.
    """

    probability: Float[np.ndarray, "n k"] = saved(0, 1)
    relevant: Int8[np.ndarray, "n k"] = saved(NO_HIT, 1)
    mated: Int8[np.ndarray, " n"] = saved(-1, 1)
    total: Float[np.ndarray, " n"] = saved(0, WHOLE)
    grid: Float[np.ndarray, " m"] = saved(0, 1)
    abstained: Bool[np.ndarray, " n"] = saved()
    cross_fitted: bool = saved()
    unseen: Float[np.ndarray, " u"] = saved(0, 1, default_factory=lambda: NOTHING)
    unseen_class: Float[np.ndarray, " u"] = saved(0, WHOLE, default_factory=lambda: NOTHING)
    score: Float[np.ndarray, " n"] = saved(empty=True, default_factory=lambda: NOTHING)
    group: Float[np.ndarray, " n"] = saved(0, WHOLE, empty=True, default_factory=lambda: NOTHING)

    def check_saved(self) -> None:
        """Refuse a file without queries or hits, and a probability of a hit that there is not."""
        if not self.probability.size or self.probability[self.relevant == NO_HIT].any():
            raise FileFormatError("queries/probability is empty, or not 0 where there is no hit")

    @classmethod
    def of_answers(
        cls,
        probability: Array,
        right: Flags,
        mated: Flags,
        *,
        grid: Array,
        abstained: Flags,
        cross_fitted: bool,
        exists: Flags | None = None,
        group: Array = NOTHING,
    ) -> CalibrationQueries:
        """Return queries of which every answer was judged.

        Parameters
        ----------
        probability, right : [n] or [n, k]
            Probability of the answer, or of each hit, and whether it is right.
        mated : [n]
            True for each query that has a match in the collection.
        grid : [m]
            Probabilities of other queries, among which thresholds of a precision are chosen.
        abstained : [n]
            True for each query that is not answered, whatever its probability is.
        cross_fitted : bool
            True if each query was tested by another fit than the one that answers.
        exists : [n, k] or None
            False where a search found fewer hits: these places are no comparisons. None, the
            default: all exist.
        group : [n]
            Number of the group of each query. Default: empty, each is independent.
        """
        hits = right.reshape(len(right), -1)
        relevant = hits.astype(np.int8)
        if exists is not None:
            relevant[~exists] = NO_HIT
        return cls(
            probability.reshape(hits.shape),
            relevant,
            mated.astype(np.int8),
            hits.sum(1).astype(np.float64),
            grid,
            abstained,
            cross_fitted,
            group=group,
        )

    def __len__(self) -> int:
        return len(self.mated)

    def take(self, rows: Rows) -> CalibrationQueries:
        """Return the queries at ``rows`` [m], with the same thresholds."""
        return replace(
            self,
            probability=self.probability[rows],
            relevant=self.relevant[rows],
            mated=self.mated[rows],
            total=self.total[rows],
            abstained=self.abstained[rows],
            score=self.score[rows] if self.one_score else self.score,
            group=self.group[rows] if len(self.group) else self.group,
        )

    def fewest(self, target: float, delta: float) -> int:
        """Return the number of queries, or groups, that a precision takes if all are right.

        Parameters
        ----------
        target, delta : float in (0, 1)
            Precision, and probability that the guarantee does not hold.
        """
        if self.n_groups:
            return fewest_groups(target, delta / 2)
        return fewest_groups(target, delta) + (not len(self.grid))

    @cached_property
    def decided(self) -> Array:
        """Probability of each hit [n, k]; ``NEVER`` of those of queries that are not answered."""
        return np.where(self.abstained[:, None], NEVER, self.probability)

    def answers(self) -> tuple[Array, Flags]:
        """Return the probability of each first hit that was judged [n'], and its relevance.

        The probability is ``NEVER`` where there is no hit, or no answer whatever it is.
        """
        return self._first_hits(np.flatnonzero(self.relevant[:, 0] != -1))

    def _first_hits(self, rows: Rows) -> tuple[Array, Flags]:
        first = self.relevant[rows, 0]
        return np.where(first == NO_HIT, NEVER, self.decided[rows, 0]), first == 1

    @cached_property
    def group_sizes(self) -> Counts:
        """Number of queries of each group; empty where each query is independent."""
        return np.unique(self.group, return_counts=True)[1]

    @property
    def n_groups(self) -> int:
        """Number of groups of queries; 0 where each is independent."""
        return len(self.group_sizes)

    def proves(self, of: str) -> bool:
        """Return True if a theorem covers a guarantee: see ``guarantees``.

        Groups of unequal size, and lists that are mostly empty, are tested by simulated tests.

        Parameters
        ----------
        of : "match" | "label" | "hits"
            Answers that are right or wrong.
        """
        if self.cross_fitted or len(np.unique(self.group_sizes)) > 1:
            return False
        if of == "hits" and (self.relevant != NO_HIT).mean() < LEAST_FULL:
            return False
        return len(self.grid) > 0 or not (self.n_groups or of == "hits")

    @property
    def one_score(self) -> bool:
        """True if one score decides, so that its order needs no fit."""
        return len(self.score) > 0

    def _ordered(self, rows: Rows) -> Array:
        """Return the key by which first hits are sorted: probability, or rank of the score.

        Of a score it is the rank, which is above ``NEVER``.
        """
        p = self._first_hits(rows)[0]
        if not self.one_score:
            return p
        ranks = np.unique(self.score, return_inverse=True)[1].astype(np.float64)
        return np.where(p == NEVER, NEVER, ranks[rows])

    def _as_probability(self, value: float, order: Array, p: Array) -> float:
        """Return the probability from which on hits are at least at ``value`` in ``order``.

        Where the probability is constant it may accept less: all thresholds above are kept, too.

        Raises
        ------
        InputError
            If the probability is constant where the score is not.
        """
        if not self.one_score:
            return value
        accepted, most_below = p[order >= value], p[order < value].max(initial=NEVER)
        if most_below > NEVER:
            accepted = accepted[accepted > most_below]
        if not len(accepted):
            raise InputError("scores: better ones are not more often relevant, so none decides.")
        return float(accepted.min())

    @property
    def _thresholds(self) -> Array | None:
        return self.grid if len(self.grid) else None

    def chosen(
        self,
        quantity: str,
        target: float,
        confidence: float,
        fraction: Fraction | None = None,
        of: str = "match",
    ) -> Chosen:
        """Return the threshold that accepts most and keeps a rate.

        Parameters
        ----------
        quantity : "precision" | "recall" | "fmr" | "fpir"
            Rate that is kept.
        target, confidence : float in (0, 1)
            Value of the rate, and the probability, over calibration sets, with which it is kept.
        fraction : float in (0, 1), OpenSetFraction or None
            Share of open-set queries for which a precision is to hold. None, the default: the share
            among these queries.
        of : "match" | "label" | "hits"
            Answers that are right or wrong: one a query, or all "hits" that are passed on. Default:
            "match".

        Raises
        ------
        InputError
            If no threshold keeps it, with what would do; for a share outside (0, 1); where these
            queries are cross-fitted and the theory wants held-out ones.
        """
        target, delta = check_share(quantity, target), 1 - check_share("confidence", confidence)
        if fraction is not None and quantity != "precision":
            raise InputError(f"open_set_fraction= is for precision=: no share moves {quantity}.")
        if self.n_groups or of == "hits":
            if fraction is not None:
                raise InputError(
                    "open_set_fraction= takes independent queries and one answer each."
                )
            if len(self.unseen) and quantity == "fpir":
                raise InputError(
                    "fpir= of new classes counts classes, not groups: pass no groups=."
                )
            return self._of_groups(quantity, target, delta, of)
        if quantity in ("fmr", "fpir"):
            return self._of_false(quantity, target, delta)
        rows = np.flatnonzero(self.relevant[:, 0] != -1)
        if fraction is not None:
            self._need_held_out("open_set_fraction")
            share, delta = level_at_fraction(fraction, delta)
            rows = rows_at_fraction(np.where(self.relevant[:, 0] >= 0, self.mated, -1), share)
        p, right = self._first_hits(rows)
        if quantity == "precision":
            order = self._ordered(rows)
            value, bound = lowest_threshold(order, right, target, delta, self._thresholds)
            value = self._as_probability(value, order, p)
            return Chosen(value, target, bound, float(right[p >= value].mean()), len(p))
        if self.cross_fitted:  # from the tested fits to the one that answers no theorem leads
            delta = delta / 2
        value, bound = highest_threshold(p, right, target, delta)
        return Chosen(value, target, bound, float((p[right] >= value).mean()), len(p))

    def largest(self, confidence: float) -> Chosen:
        """Return the threshold of the largest precision, in whole per cent, that can be kept.

        Raises
        ------
        InputError
            If not even 1 % can be; for a confidence outside (0, 1).
        """
        rows = np.flatnonzero(self.relevant[:, 0] != -1)
        (p, right), order = self._first_hits(rows), self._ordered(rows)
        delta = 1 - check_share("confidence", confidence)
        if self.n_groups:
            tests, _ = self._group_tests("precision", "match")
            best = tests.largest_precision(right, delta)
            if best is None:
                raise InputError(f"no precision can be guaranteed by these {self._units()}.")
            return Chosen(best[1], best[0], best[0], float(right[p >= best[1]].mean()), len(p))
        target, value, bound = largest_precision(order, right, delta, self._thresholds)
        value = self._as_probability(value, order, p)
        return Chosen(value, target, bound, float(right[p >= value].mean()), len(p))

    def queries_needed(
        self, precision: float, confidence: float = 0.95, chance: float = CHANCE
    ) -> QueriesNeeded:
        """Estimate how many more queries it takes to guarantee a precision.

        Its ``more`` are queries to calibrate with: where half of them test, twice the tested ones.

        Parameters
        ----------
        precision : float in (0, 1)
            Precision to be guaranteed.
        confidence : float in (0, 1)
            Probability, over calibration sets, with which it holds. Default: 0.95.
        chance : float in (0, 1)
            Probability that it can be guaranteed then, if new queries are answered as these are.
            Default: 0.8.

        Raises
        ------
        InputError
            For shares outside (0, 1).
        """
        target = check_share("precision", precision)
        delta = 1 - check_share("confidence", confidence)
        check_share("chance", chance)
        rows = np.flatnonzero(self.relevant[:, 0] != -1)
        order, right = self._ordered(rows), self._first_hits(rows)[1]
        if self.n_groups:  # how alike new groups are is not known
            least, told = self._group_tests("precision", "match")[0].fewest(target, delta, "groups")
            return QueriesNeeded(None, 0, 0, least, told)
        found = queries_needed(
            order, right, target, delta, chance=chance, thresholds=self._thresholds
        )
        halves = 2 if len(self.grid) else 1
        return found if found.more is None else replace(found, more=halves * found.more)

    def rates(self, value: float) -> dict[str, float]:
        """Return the rates of accepting probabilities from ``value`` on.

        A rate is left out if no query or hit counts for it.

        "coverage" of all queries, "precision" of the first hits; "fmr" and "fnmr" of all
        comparisons (1:1), which places without a hit are not; "fpir" of queries without a match in
        the collection that have a hit, and "fnir" of queries with a match (1:N). With new classes
        the FPIR is theirs, and each class counts once.
        """
        rates = error_rates(value, self.decided, self.relevant, self.mated)
        if len(self.unseen):
            accepted, of = self.unseen >= value, self.unseen_class.astype(int)
            rates["fpir"] = float((np.bincount(of, accepted) / np.bincount(of)).mean())
        return rates

    def precision_at(
        self, value: float, open_set_fraction: ArrayLike, confidence: float
    ) -> tuple[Array, Array]:
        """Return precision and its lower bound where this share of the queries has no match.

        See ``precision_of_mixture``.

        Parameters
        ----------
        value : float in [0, 1]
            Smallest probability that is accepted.
        open_set_fraction : [...] in [0, 1]
            Share or shares of the queries that have no match.
        confidence : float in (0, 1)
            Probability with which the bound holds, for one threshold that was fixed before.

        Raises
        ------
        InputError
            For shares outside [0, 1], and without queries of both kinds.
        """
        share = as_floats("open_set_fraction", open_set_fraction)
        if not ((share >= 0) & (share <= 1)).all():
            raise InputError("open_set_fraction lies outside [0, 1]: pass shares.")
        first, relevant = self.decided[:, 0], self.relevant[:, 0]
        return precision_of_mixture(share, value, first, relevant, self.mated, 1 - confidence)

    def _group_tests(self, quantity: str, of: str) -> tuple[GroupTests, Flags]:
        """Return the tests of what a rate counts, and which of it is right."""
        places = self.relevant.shape[1]
        if quantity == "fmr":
            counted = self.relevant == 0
        elif of == "hits":
            counted = self.relevant >= 0
        else:
            counted, places = np.zeros_like(self.relevant, bool), 1
            counted[:, 0] = self.relevant[:, 0] != -1
            if quantity == "fpir":
                counted[:, 0] = (self.mated == 0) & (self.relevant[:, 0] != NO_HIT)
        rows, places_of = counted.nonzero()
        p = np.where(self.relevant == NO_HIT, NEVER, self.decided)[rows, places_of]
        units = self.group if self.n_groups else np.arange(len(self))
        names, unit = np.unique(units[rows], return_inverse=True)
        most = places * int(self.group_sizes.max(initial=1)) if self.proves(of) else None
        grid = self._thresholds
        if grid is not None and of == "hits":  # hits behind the first have smaller probabilities
            grid = np.concatenate([grid, np.linspace(0, grid.min(), BELOW, endpoint=False)])
        right = self.relevant[rows, places_of] == 1
        return GroupTests.of(p, unit, len(names), most, grid), right

    @property
    def _unit(self) -> str:
        return "groups" if self.n_groups else "queries"

    def _units(self) -> str:
        return f"{self.n_groups or len(self):,} {self._unit}"

    def _of_groups(self, quantity: str, target: float, delta: float, of: str) -> Chosen:
        if quantity in ("fmr", "fpir"):
            self._need_held_out(quantity)
        elif quantity == "recall" and self.cross_fitted:
            delta = delta / 2
        tests, right = self._group_tests(quantity, of)
        p, low = tests.p, target
        if quantity == "precision":
            value = tests.lowest_precise(right, target, delta)
        elif quantity == "recall":
            value = tests.highest_complete(right, target, delta)
        else:
            value, low = tests.lowest_of_false(~right, target, delta), 1 - target
        if value is None:
            raise InputError(
                f"{quantity}={target:g} cannot be guaranteed by these {self._units()}: "
                f"{tests.fewest(low, delta, self._unit)[1]}. Ask for less, or calibrate on more "
                f"{self._unit}."
            )
        value = max(value, 0.0)
        accepted = p >= value
        shares = right[accepted] if quantity == "precision" else accepted[right]
        if quantity in ("fmr", "fpir"):
            shares = accepted
        return Chosen(value, target, target, float(shares.mean()), len(self))

    def hits_passed(self, value: float) -> float:
        """Return the mean number of hits a query whose probability is at least ``value``."""
        return float(((self.decided >= value) & (self.relevant != NO_HIT)).sum(1).mean())

    def _of_false(self, quantity: str, target: float, delta: float) -> Chosen:
        of_classes = quantity == "fpir" and len(self.unseen) > 0
        if of_classes:
            false = one_query_a_class(self.unseen, self.unseen_class)
            of = len(false)
        else:
            self._need_held_out(quantity)
            if quantity == "fmr":
                false, of = one_comparison_a_query(self.decided, self.relevant)
            else:
                false = self.decided[(self.mated == 0) & (self.relevant[:, 0] != NO_HIT), 0]
                of = len(false)
        kept = threshold_of_false(false, target, delta)
        if kept is None:
            least, what = fewest_false(target, delta), "comparisons that are no match, one a query"
            where, advice = "in the tested half, which has", "Calibrate on more, or ask for less."
            if self.one_score:
                where = "and there are"
            if of_classes:
                what, where, advice = "new classes", "and there are", "Ask for less."
            elif quantity == "fpir":
                what = "queries without a match in the collection (mated=0)"
            drawn = f", worth {len(false):,} as the lists differ in length" if of >= least else ""
            raise InputError(
                f"{quantity}={target:g} cannot be guaranteed: it takes {least:,} {what}, {where} "
                f"{of:,}{drawn}. {advice}"
            )
        value = max(kept[0], 0.0)  # below all probabilities, where nothing is answered anyway
        return Chosen(value, target, kept[1], self.rates(value)[quantity], of)

    def _need_held_out(self, what: str) -> None:
        """Refuse cross-fitted queries: an FPIR was broken in 8 % of simulations, not 5 %."""
        if self.cross_fitted:
            raise InputError(f"{what}= takes queries held out: calibrate with cross_fit=0.")
