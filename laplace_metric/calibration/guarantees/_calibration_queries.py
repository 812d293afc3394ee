"""Queries that no fit has seen, which test guarantees.

Search results and scores of any search are tested alike: by the probability of each hit, whether it
is relevant, and whether the collection has a match of the query at all. The theories have a file
each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int8

from laplace_metric._utils.validation import ArrayLike, as_floats
from laplace_metric.calibration._array_namespace import Array, Counts, Flags, Judged
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.calibration.guarantees._open_set_fraction import precision_of_mixture
from laplace_metric.calibration.guarantees._test_sequences import NEVER
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import WHOLE, Kind, saved

QUERIES = Kind("queries", "saved calibration queries", 2)
NOTHING = np.empty(0)
Rows = npt.NDArray[np.intp]


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
    whole : int or None
        Number of queries of each whole group where these are a part of them (``take``), 0 if it
        varies. None, the default: these are the whole groups.
    simulated : bool
        True if the items of their class were hidden from some queries without a match: what depends
        on these is simulated. Default: False.
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
    whole: int | None = saved(least=0, default=None)
    simulated: bool = saved(empty=True, default=False)

    def check_saved(self) -> None:
        """Refuse a file without queries or hits, and a probability of a hit that there is not."""
        if not self.probability.size or self.probability[self.relevant == NO_HIT].any():
            raise FileFormatError("queries/probability is empty, or not 0 where there is no hit")
        if self.whole and self.group_sizes.max(initial=0) > self.whole:
            raise FileFormatError(f"queries/whole is {self.whole}, less than a group has")

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
        simulated: bool = False,
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
        simulated : bool
            True if items were hidden from queries without a match. Default: False.
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
            simulated=simulated,
        )

    def __len__(self) -> int:
        return len(self.mated)

    def take(self, rows: Rows) -> CalibrationQueries:
        """Return the queries at ``rows`` [m], with the same thresholds.

        The whole groups keep their size: a new group may have all of its queries in such a part,
        whatever the most is that a group has here.
        """
        return replace(
            self,
            probability=self.probability[rows],
            relevant=self.relevant[rows],
            mated=self.mated[rows],
            total=self.total[rows],
            abstained=self.abstained[rows],
            score=self.score[rows] if self.one_score else self.score,
            group=self.group[rows] if len(self.group) else self.group,
            whole=self.whole_size if len(self.group) else None,
        )

    @cached_property
    def decided(self) -> Array:
        """Probability of each hit [n, k]; ``NEVER`` of those of queries that are not answered."""
        return np.where(self.abstained[:, None], NEVER, self.probability)

    def answers(self) -> tuple[Array, Flags]:
        """Return the probability of each first hit that was judged [n'], and its relevance.

        The probability is ``NEVER`` where there is no hit, or no answer whatever it is.
        """
        return self.first_hits(np.flatnonzero(self.relevant[:, 0] != -1))

    def first_hits(self, rows: Rows) -> tuple[Array, Flags]:
        """Return the probability of first hits, or ``NEVER``, and which of them is right."""
        first = self.relevant[rows, 0]
        return np.where(first == NO_HIT, NEVER, self.decided[rows, 0]), first == 1

    @cached_property
    def group_sizes(self) -> Counts:
        """Number of queries of each group; empty where each query is independent."""
        return np.unique(self.group, return_counts=True)[1]

    @property
    def whole_size(self) -> int:
        """Number of queries of each whole group, 1 without groups; 0 if it varies."""
        if self.whole is not None:
            return self.whole
        sizes = np.unique(self.group_sizes)
        return 0 if len(sizes) > 1 else int(sizes.max(initial=1))

    @property
    def n_groups(self) -> int:
        """Number of groups of queries; 0 where each is independent."""
        return len(self.group_sizes)

    @property
    def one_score(self) -> bool:
        """True if one score decides, so that its order needs no fit."""
        return len(self.score) > 0

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
            For shares outside [0, 1], for groups, and without queries of both kinds.
        """
        if self.n_groups:
            raise InputError(
                "precision_at counts independent queries: calibrate on one of each group, without "
                "groups=."
            )
        share = as_floats("open_set_fraction", open_set_fraction)
        if not ((share >= 0) & (share <= 1)).all():
            raise InputError("open_set_fraction lies outside [0, 1]: pass shares.")
        first, relevant = self.decided[:, 0], self.relevant[:, 0]
        return precision_of_mixture(share, value, first, relevant, self.mated, 1 - confidence)

    @property
    def unit(self) -> str:
        """Name of what is independent: "groups" or "queries"."""
        return "groups" if self.n_groups else "queries"

    @property
    def thresholds(self) -> Array | None:
        """Probabilities of other queries, among which a threshold is chosen; None: of these."""
        return self.grid if len(self.grid) else None

    def hits_passed(self, value: float) -> float:
        """Return the mean number of hits a query whose probability is at least ``value``."""
        return float(((self.decided >= value) & (self.relevant != NO_HIT)).sum(1).mean())


def error_rates(value: float, p: Array, relevant: Judged, mated: Judged) -> dict[str, float]:
    """Return the rates of accepting p >= value; a rate of no query or hit is left out.

    Parameters
    ----------
    value : float
        Smallest probability that is accepted.
    p : [n, k]
        Probabilities of the hits.
    relevant : [n, k]
        Relevance of each hit: 1, 0, -1 where it was not judged, and ``NO_HIT`` for places that are
        not accepted, and no comparisons.
    mated : [n]
        Presence of a match in the collection: 1, 0, or -1 where it is not known.
    """
    accepted = (p >= value) & (relevant != NO_HIT)
    first, right, judged = accepted[:, 0], relevant[:, 0] == 1, relevant[:, 0] >= 0
    parts = {
        "coverage": first,
        "precision": right[first & judged],
        "fmr": accepted[relevant == 0],
        "fnmr": ~accepted[relevant == 1],
        "fpir": first[(mated == 0) & (relevant[:, 0] != NO_HIT)],
        "fnir": ~(first & right)[mated == 1],
    }
    return {name: float(flags.mean()) for name, flags in parts.items() if len(flags)}
