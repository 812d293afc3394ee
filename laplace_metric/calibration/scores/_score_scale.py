"""Scale of the numbers that calibrated, with which later ones are compared.

A rule compares scores with a threshold, so that it holds for scores of one scale. Of the first hits
of n later queries, and of m that calibrated, each column is compared by

    D = sup_x |F(x) - G(x)|                                      Kolmogorov & Smirnov's statistic
    P(D >= d) <= 2 exp(-2 d^2 n m / (n + m))    Massart 1990; Wei & Dudley 2012 for two samples

The bound is for independent queries. Later ones may be copies of each other, and they may belong
together as far as those of a group did that calibrated: n is then the number of independent queries
whose mean is as certain,

    n_eff = n (n + n (n - 1) c) / sum_g m_g^2 / (1 + (n - 1) r)

with m_g equal scores, c the share of equal pairs among the scores that calibrated, and r their
intraclass correlation within groups (0 without groups): all later queries may be of one group.

Two samples that differ may differ by a known change, such as per cent: ``explanation`` names it.

A mixture of scales moves few scores, and D by their share alone. So those are counted, too, that
are better than all that calibrated. If all n + m come from one distribution, the j best are all new
with probability

    P = C(n, j) / C(n + m, j)

Copies are equal in all that was given of a query: lists that each divides by its largest score have
equal first hits, and are different queries.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from laplace_metric.calibration._array_namespace import Array
from laplace_metric.calibration.scores._copied_scores import SAME, equal_rows
from laplace_metric.errors import FileFormatError, InputError, ScoresWarning, callers_line
from laplace_metric.io import saved

MOST = 400
"""Scores of a column that are stored."""
LEVEL = 1e-4
"""Probability, at most, of a warning where scores are of the same distribution."""
LIKE = 1e-2
"""The same probability, where scores of the same distribution are looked for."""
ENOUGH = 10
"""Queries whose scores can show their scale."""
APART = 0.3
"""Smallest gap between two distributions that is explained by a change of scale."""
FAR = 10.0
"""Widths of the range beyond which fewer than ``ENOUGH`` queries are of another scale, too; as many
times more as the tail (from the 90th percentile on) is longer than from the median to there."""
FUSION = 1.25
"""Fused scores that are larger than all that calibrated by this factor come from another fusion."""
ROUNDING = 5e-7
"""Relative difference of equal scores of float32: cosines of 1 are .99999994 to 1.0000001."""
OUTSIDE = ", outside of all that calibrated: pass it in the unit of the calibration"
RECENT = (20, 100)
"""Numbers of queries, in calls of fewer, at which these are compared; the last one empties them."""
ROOTS = "their roots fit. FAISS and others return squares: pass the roots"
SQUARES = "their squares fit: pass squared distances, as in the calibration"
CHANGES: dict[str, Callable[[Array], Array]] = {
    "a hundredth of them fits, as of per cent: divide by 100": lambda s: s / 100,
    "they fit times 100: pass per cent, as in the calibration": lambda s: 100 * s,
    "2 s - 1 of them fits, as of cosines moved to [0, 1]: pass 2 s - 1": lambda s: 2 * s - 1,
    "(1 + s) / 2 of them fits: pass that, as in the calibration": lambda s: (1 + s) / 2,
    ROOTS: np.sqrt,
    SQUARES: np.square,
    "1 - s of them fits, as similarity and distance are: pass 1 - s": lambda s: 1 - s,
    "1 - s / 2 of them fits, as of squared distances: pass 1 - s / 2": lambda s: 1 - s / 2,
    "2 - 2 s of them fits, as of cosines: pass 2 - 2 s": lambda s: 2 - 2 * s,
    "1 - s^2 / 2 of them fits, as of distances: pass 1 - s^2 / 2": lambda s: 1 - s**2 / 2,
    "sqrt(2 - 2 s) of them fits, as of cosines: pass that": lambda s: np.sqrt(2 - 2 * s),
    "they fit with the other sign: pass -s": lambda s: -s,
    "log(s / (1 - s)) of them fits: pass logits, as in the calibration": lambda s: np.log(
        s / (1 - s)
    ),
    "1 / (1 + exp(-s)) of them fits, as of logits: pass that": lambda s: 1 / (1 + np.exp(-s)),
    "exp(s) of them fits, as of logarithms: pass that": np.exp,
    "log(s) of them fits: pass logarithms, as in the calibration": np.log,
}
"""Changes of scale that stores and rerankers make: the advice, and the function that undoes it."""


class RecentScores:
    """First hits of calls of few queries, until they are enough to be compared.

    It may be used by several threads at once. Copies and files of it are empty.
    """

    def __init__(self) -> None:
        self._lock, self._rows = threading.Lock(), list[Array]()

    def __reduce__(self) -> tuple[Any, ...]:
        return RecentScores, ()

    def add(self, rows: Array) -> Array | None:
        """Store rows [n, C]; return all that are stored if they are to be compared now."""
        with self._lock:
            before = len(self._rows)
            self._rows.extend(rows)
            if not any(before < number <= len(self._rows) for number in RECENT):
                return None
            found = np.array(self._rows)
            if len(found) >= RECENT[-1]:
                self._rows.clear()
            return found


@dataclass(frozen=True, eq=False)
class ScoreScale:
    """Distribution of the numbers of first hits that calibrated.

    Parameters
    ----------
    values : [m, C]
        Quantiles of C columns, in the units of the caller, in ascending order: scorers, then
        evidence.
    worth : float
        Number of independent queries among those that calibrated, at most m.
    alike : float in [0, 1]
        Intraclass correlation of the scores of a group; 0 where queries are independent.
    """

    values: Float[np.ndarray, "m C"] = saved()
    worth: float = saved(least=0)
    alike: float = saved(0, 1, default=0.0)
    recent: RecentScores = field(default_factory=RecentScores, init=False, repr=False)

    def check_saved(self) -> None:
        """Refuse scores of a file that are none, or not in ascending order."""
        if not self.values.size or (np.diff(self.values, axis=0) < 0).any() or not self.worth:
            raise FileFormatError("scale.values are no scores in ascending order, or worth nothing")
        n = len(self.values)
        if self.worth > n or (self.alike == 0 and self.worth != n):
            raise FileFormatError(f"scale.values has {n} rows, which are not worth {self.worth:g}")

    @classmethod
    def of(cls, first: Array, group: npt.NDArray[Any] | None) -> ScoreScale:
        """Return the scale of first hits [n, C], in groups [n], or None: each is independent."""
        n = len(first)
        ordered = np.sort(first, 0)
        rows = np.linspace(0, n - 1, min(n, MOST)).round().astype(int)
        alike, size = 0.0, 1.0
        if group is not None:
            codes = np.unique(group, return_inverse=True)[1]
            alike = max(_intraclass_correlation(column, codes) for column in first.T)
            size = float((np.bincount(codes) ** 2).sum() / n)
        return cls(ordered[rows], len(rows) / (1 + (size - 1) * alike), alike)

    def refuse_beyond(self, first: Array, kinds: Sequence[str]) -> None:
        """Raise InputError if first hits [n, C] are of another unit than those that calibrated.

        At least half of them are then better than all that calibrated, by more than the width of
        their range, or by ``FAR`` widths if they are few. Worse ones are not answered: they may be
        of queries without a match, and are no error.

        Raises
        ------
        InputError
            With both ranges, and the change of scale that explains them.
        """
        for place, kind in enumerate(kinds):
            new, old = first[:, place], self.values[:, place]
            least, most = float(old[0]), float(old[-1])
            if kind == "fused":
                if new.max() > FUSION * most:
                    raise InputError(
                        f"{_name(place, kinds)} reach {new.max():.4g}, and fused scores that "
                        f"calibrated were {most:.4g} at most: they come from another fusion (other "
                        "lists, or another constant). Fuse as for the calibration, or calibrate "
                        "again."
                    )
                continue
            beyond = np.sort(least - new if kind == "distance" else new - most)
            if beyond[-1] <= most - least or most == least:
                continue
            middle = float(beyond[(len(beyond) - 1) // 2])
            if middle > self._widths(new, place, kind) * (most - least):
                raise InputError(self._told(first, place, kinds))

    def warn_if_unlike(
        self, first: Array, kinds: Sequence[str], evidence: Sequence[str], lists: Array
    ) -> None:
        """Warn if first hits [n, C], or those of recent calls, are of another distribution.

        Parameters
        ----------
        first : [n, C]
            Scores of first hits, then their evidence.
        kinds, evidence : sequence of str
            Meaning of the scores, and names of the evidence.
        lists : [n, L]
            All scores of each query, which tell copies from queries with an equal first hit.

        Warns
        -----
        ScoresWarning
            With the column, both ranges and what explains it.
        """
        told = self._few_outside(first, kinds, evidence)
        rows = np.column_stack([first, lists])
        recent = self.recent.add(rows) if len(first) < RECENT[-1] else None
        for asked in (rows, recent):
            if told or asked is None or len(asked) < ENOUGH:
                continue
            new, same = asked[:, : first.shape[1]], self._same(asked)
            for place in range(new.shape[1]):
                n = self._independent(new[:, place], place, same)
                if self._unlike(new[:, place], place, n=n):
                    told = self._told(new, place, kinds, evidence)
                elif place < len(kinds):
                    told = self._better_than_all(new[:, place], place, kinds, n, same)
                if told:
                    break
        if told:
            warnings.warn(told, ScoresWarning, stacklevel=callers_line())

    def _few_outside(self, first: Array, kinds: Sequence[str], evidence: Sequence[str]) -> str:
        """Return what tells evidence of another unit in too few queries to compare, or nothing."""
        if len(first) >= ENOUGH:
            return ""
        for place, name in enumerate(evidence, len(kinds)):
            new, old = first[:, place], self.values[:, place]
            for sign in (1.0, -1.0):
                beyond = np.sort(sign * new) - float((sign * old).max())
                widths = _far(np.sort(sign * old))
                if beyond[(len(new) - 1) // 2] > widths * float(old[-1] - old[0]) > 0:
                    return (
                        f"{name} of first hits is {new.min():.4g} to {new.max():.4g}{OUTSIDE} "
                        f"({old[0]:.4g} to {old[-1]:.4g}), or calibrate again."
                    )
        return ""

    def _better_than_all(
        self,
        new: Array,
        place: int,
        kinds: Sequence[str],
        n: float,
        same: npt.NDArray[np.int_],
    ) -> str:
        """Return what tells that more scores are better than all that calibrated than by chance."""
        old, name = self.values[:, place], _name(place, kinds)
        sign = -1.0 if kinds[place] == "distance" else 1.0
        best = float((sign * old).max())
        better = sign * new > best + _rounding(old)
        count = min(int(better.sum() * n / len(new)), len(np.unique(same[better])))
        if not count or _log_chance(count, n, self.worth) > math.log(LEVEL):
            return ""
        found = new[better]
        return (
            f"{name} of {better.sum():,} of {len(new):,} first hits are {found.min():.4g} to "
            f"{found.max():.4g}, better than all that calibrated ({old[0]:.4g} to {old[-1]:.4g}), "
            "which chance does not explain: some are of another scale, or of queries unlike those "
            "that calibrated."
        )

    def _widths(self, new: Array, place: int, kind: str) -> float:
        """Return the widths of the range beyond which new scores are of another unit."""
        if self._independent(new, place) >= ENOUGH:
            return 1.0
        better = -self.values[::-1, place] if kind == "distance" else self.values[:, place]
        middle, high = np.quantile(better, (0.5, 0.9))
        longer = (better[-1] - high) / (high - middle) if high > middle else 1.0
        return FAR * max(1.0, float(longer))

    @cached_property
    def _equal(self) -> list[float]:
        """Share of pairs with equal scores, of each column."""
        sizes = [np.bincount(equal_rows(x[:, None], x.std())) for x in self.values.T]
        m = len(self.values)
        return [float(((n * (n - 1)).sum()) / max(m * (m - 1), 1)) for n in sizes]

    def _same(self, rows: Array) -> npt.NDArray[np.int_]:
        """Return the number of each query [n] of first hits and lists; copies share one."""
        spread = rows.std(0)
        spread[: self.values.shape[1]] = self.values.std(0)
        return equal_rows(rows, spread)

    def _independent(
        self, new: Array, place: int, same: npt.NDArray[np.int_] | None = None
    ) -> float:
        """Return n_eff of n scores; ``same``: number of each query, None: of each score."""
        n, spread = len(new), self.values[:, place].std()
        sizes = np.bincount(equal_rows(new[:, None], spread) if same is None else same)
        by_chance = n + n * (n - 1) * self._equal[place]
        return n * min(by_chance / float(sizes @ sizes), 1.0) / (1 + (n - 1) * self.alike)

    def _largest_gap(
        self, new: Array, place: int, level: float = LEVEL, n: float | None = None
    ) -> float:
        """Return the gap that samples of one distribution exceed with this probability at most."""
        n = self._independent(new, place) if n is None else n
        return math.sqrt(math.log(2 / level) / 2 * (1 / n + 1 / self.worth))

    def _unlike(self, new: Array, place: int, level: float = LEVEL, n: float | None = None) -> bool:
        largest = self._largest_gap(new, place, level, n)
        return largest < 1 and gap(new, self.values[:, place]) > largest

    def _told(
        self, rows: Array, place: int, kinds: Sequence[str], evidence: Sequence[str] = ()
    ) -> str:
        """Return both ranges of a column, and what explains them."""
        new, old = rows[:, place], self.values[:, place]
        name = _name(place, kinds) if place < len(kinds) else evidence[place - len(kinds)]
        return (
            f"{name} of first hits are {new.min():.4g} to {new.max():.4g} (new queries: "
            f"{len(rows):,}), and those that calibrated {old[0]:.4g} to {old[-1]:.4g}, of another "
            f"distribution: {self._cause(rows, place, kinds)}."
        )

    def _cause(self, rows: Array, place: int, kinds: Sequence[str]) -> str:
        """Return what explains that a column is unlike the one that calibrated."""
        if place >= len(kinds):
            return "calibrate on queries such as these"
        for other in range(len(kinds)):
            if other != place and not (
                self._unlike(rows[:, place], other, LIKE)
                or self._unlike(rows[:, other], place, LIKE)
            ):
                return (
                    f"scorers {place} and {other} look exchanged: pass them in the order of the "
                    "calibration"
                )
        new, old = rows[:, place], self.values[:, place]
        among = [x for x in CHANGES if kinds[place] == "distance" or x not in (ROOTS, SQUARES)]
        return explanation(new, old, among, self._largest_gap(new, place, LIKE)) or (
            "no common change of scale explains it. Pass scores of the same search, or calibrate "
            "again if the queries are of another kind or share without a match"
        )


def _far(better: Array) -> float:
    """Return ``FAR`` widths, or as many times more as the tail of ascending numbers is longer."""
    middle, high = np.quantile(better, (0.5, 0.9))
    longer = (better[-1] - high) / (high - middle) if high > middle else 1.0
    return FAR * max(1.0, float(longer))


def _rounding(values: Array) -> float:
    """Return the largest difference of equal scores."""
    return max(SAME * float(values.std()), ROUNDING * float(np.abs(values).max()))


def _log_chance(j: int, n: float, m: float) -> float:
    """Return log P that the j best of n + m are all among the n."""
    from scipy.special import gammaln  # a search imports this file, and SciPy takes long

    of_all = gammaln(n + m + 1) - gammaln(n + m - j + 1)
    return float(gammaln(n + 1) - gammaln(n - j + 1) - of_all)


def explanation(
    new: Array, old: Array, among: Iterable[str], largest: float = math.inf
) -> str | None:
    """Return the change of ``CHANGES`` that makes new numbers like old ones; None for none.

    The gap between their distributions is larger than ``APART``, and half as large at most after
    the change; for fewer than ``ENOUGH`` it is smaller.

    Parameters
    ----------
    new, old : [n], [m]
        Numbers of later queries, and of those that calibrated.
    among : names
        Changes to try.
    largest : float
        Largest gap after the change. Default: infinite.

    Examples
    --------
    >>> explanation(np.linspace(10, 90, 50), np.linspace(0.1, 0.9, 50), CHANGES)
    'a hundredth of them fits, as of per cent: divide by 100'
    """
    as_given, found = gap(new, old), dict[str, float]()
    for name in among:
        with np.errstate(all="ignore"):
            changed = CHANGES[name](new)
        if np.isfinite(changed).all():
            found[name] = gap(changed, old)
    best = min(found, key=lambda name: found[name], default=None)
    most = min(as_given / 2 if len(new) >= ENOUGH else as_given, largest)
    return None if best is None or as_given <= APART or found[best] >= most else best


def gap(one: Array, other: Array) -> float:
    """Return ``D = sup_x |F(x) - G(x)|`` of two samples [n] and [m], equal but for a rounding."""
    one, other = np.sort(one), np.sort(other)
    at = np.sort(np.concatenate([one, other]))
    at = at[np.append(np.diff(at) > _rounding(other), True)]
    below = [np.searchsorted(x, at, side="right") / len(x) for x in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def check_kind(kind: str | Sequence[str] | None, kinds: tuple[str, ...]) -> None:
    """Raise InputError if scores are said to be of another kind than those that calibrated."""
    if kind is None:
        return
    given = (kind,) if isinstance(kind, str) else tuple(kind)
    if given != kinds:
        one, other = (x[0] if len(x) == 1 else x for x in (given, kinds))
        raise InputError(
            f"kind={one!r}, and the scores that calibrated are kind={other!r}: pass scores of that "
            "kind, or calibrate on these."
        )


def _name(place: int, kinds: Sequence[str]) -> str:
    return "scores" if len(kinds) == 1 else f"scores[..., {place}]"


def _intraclass_correlation(values: Array, group: npt.NDArray[np.intp]) -> float:
    """Return the share of the variance of ranks that is between groups (Fisher 1925), from 0 on."""
    sizes = np.bincount(group).astype(np.float64)
    n, groups = len(values), len(sizes)
    if n == groups:
        return 0.0
    ranks = np.searchsorted(np.sort(values), values).astype(np.float64)
    mean = np.bincount(group, ranks) / sizes
    between = float(sizes @ (mean - ranks.mean()) ** 2) / max(groups - 1, 1)
    within = float(((ranks - mean[group]) ** 2).sum()) / (n - groups)
    size = (n - float(sizes @ sizes) / n) / max(groups - 1, 1)
    total = between + (size - 1) * within
    return float(np.clip((between - within) / total, 0, 1)) if total > 0 else 0.0
