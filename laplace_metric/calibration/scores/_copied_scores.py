"""Copies among the calibration queries: one question that stands in a log many times.

Tests of a guarantee count independent queries. Copies have equal scores. Equal scores alone are no
copies: scores of one decimal, or of reciprocal ranks, have few values. Two things tell them apart.

**Judgements.** Different queries with equal scores are judged independently, with the chance of a
match p, a non-decreasing function of the score (isotonic regression of the groups). Of a group of
m, of which r match,

    P(not all judged alike) = 1 - p^m - (1 - p)^m          E (r - m p)^2 = m p (1 - p)

Where far fewer groups than the sum E of the first are judged differently, the rows are copies. So
they are where the squares are far more than the sum of the second: copies that are judged anew.

**Counts.** Where judgements are too few to tell, scores of many digits are equal for copies alone.
Scores of few digits are equal for other queries, too, but their counts change little from cell to
cell, up to chance: copies make them uneven.

With groups of sizes m, the variance of a share of n queries is sum m^2 / n times that of
independent ones (the design effect of Kish 1965). A fifth more makes 7 % of the 5 % in which a
guarantee may be broken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration._array_namespace import Array, Flags, Judged
from laplace_metric.calibration._counted_once import counted_once

SAME = 1e-6
"""Largest difference of copies, in standard deviations of a column: rounding of float32."""
COARSE, WHOLE = 1e-3, 1e-3
"""Scores are rounded if they are multiples of about this share of their standard deviation, up to
this share of a step."""
EFFECT = 1.2
"""Largest design effect of copies that pass without a word."""
EXPECTED, UNLIKE = 7.0, 0.25
"""E from which on judgements tell copies, and the share of E that may be judged differently."""
DEVIATIONS = 2.0
"""Standard deviations that the squares are above their sum where copies are judged anew."""
SMOOTH = np.array([-1.0, 4.0, 0.0, 4.0, -1.0]) / 6
"""Count of a cell by those of its neighbours, exact for cubic densities."""
ROUND = 5
"""People and language models choose multiples of five more often: these cells are not compared."""
FINE = 15
"""Cells with scores, at least, whose counts can be compared."""
UNEVEN, RARE = 3.84, 1e-4
"""Square that 5 % of standardised counts exceed; probability of as many that do where counts are
smooth."""


def copies_among(values: Array, exists: Flags, judged: Judged, columns: list[Array]) -> Flags:
    """Return which queries [Q] are no copy of an earlier one; True where few are.

    Parameters
    ----------
    values : [Q, k, S]
        Scores, larger for a match.
    exists : [Q, k]
        Places with a hit.
    judged : [Q, k]
        Relevance of each hit: 1, 0, or -1 where it was not judged.
    columns : [Q, k] each
        Further columns that differ between different queries, such as evidence and ids.

    Examples
    --------
    >>> g = np.random.default_rng(0)
    >>> right = g.random(40) < 0.7
    >>> score = np.repeat(g.normal(size=40) + right, 25)[:, None, None]
    >>> judged = np.repeat(right, 25)[:, None].astype(np.int8)
    >>> found = copies_among(score, np.ones((1000, 1), bool), judged, [])
    >>> int(found.sum())
    40
    """
    n, rows = len(values), _rows(values, exists, columns)
    group = equal_rows(rows, rows.std(0))
    first = np.zeros(n, bool)
    first[np.unique(group, return_index=True)[1]] = True
    by_chance = n**2 * SAME / (2 * np.pi**0.5) if rows.shape[1] == 3 else 0.0  # of normal scores
    if (np.bincount(group) ** 2).sum() / n <= EFFECT + 6 * by_chance / n:
        return np.ones(n, bool)
    value = values[..., 0]
    step = _step(value[~first][exists[~first]], float(value[exists].std()))
    are_copies = _are_copies(group, value[:, 0], judged, step)
    return first if are_copies else np.ones(n, bool)


def copies_in_groups(
    order: npt.NDArray[np.int_],
    values: Array,
    exists: Flags,
    judged: Judged,
    columns: list[Array],
    group: npt.NDArray[np.intp],
) -> Flags:
    """Return which queries [Q] are no copy of one in another group; True where few are.

    Copies of one group count as it does; a copy in another group makes one of two.

    Parameters
    ----------
    order : [Q]
        Rows in random order, which draws the group of each copy that counts.
    values, exists, judged, columns
        Scores, places with a hit, judgements and further columns, as for ``copies_among``.
    group : [Q]
        Number of the group of each query.
    """
    rows = _rows(values, exists, columns)
    same = equal_rows(rows, rows.std(0))
    one = np.unique(np.column_stack([same, group]), axis=0, return_index=True)[1]
    apart = copies_among(values[one], exists[one], judged[one], [x[one] for x in columns])
    counts = np.ones(len(values), bool)
    if not apart.all():
        counts[:] = False
        counts[counted_once(order, same, group)] = True
    return counts


def _rows(values: Array, exists: Flags, columns: list[Array]) -> Array:
    """Return all that tells queries apart, [Q, C]."""
    n = len(values)
    nothing = np.where(exists[:, 0], 0.0, np.arange(n))  # lists without a hit are no copies
    return np.column_stack([values.reshape(n, -1), *columns, exists.sum(1), nothing])


def equal_rows(rows: Array, spread: Any) -> npt.NDArray[np.int_]:
    """Return the group [Q] of each row [Q, C]; rows that are equal but for rounding share one.

    Parameters
    ----------
    rows : [Q, C]
        Numbers of each query.
    spread : [C] or float
        Standard deviation of each column, the unit of a rounding.
    """
    order = np.lexsort(rows.T[::-1])
    apart = np.abs(np.diff(rows[order], axis=0)) > SAME * spread
    group = np.empty(len(rows), int)
    group[order] = np.append(0, apart.any(1).cumsum())
    return group


def _are_copies(
    group: npt.NDArray[np.int_], value: Array, judged: Judged, step: float | None
) -> bool:
    """Return whether groups of equal rows are copies, by their first hits.

    Parameters
    ----------
    group, value : [Q]
        Group and first score of each row.
    judged : [Q, k]
        Relevance of each hit.
    step : float or None
        Step of scores of few digits; None: they have many.
    """
    from scipy.optimize import isotonic_regression

    known = judged[:, 0] >= 0
    _, group = np.unique(group[known], return_inverse=True)
    size = np.bincount(group)
    right = np.bincount(group, judged[known, 0])
    order = np.argsort(np.bincount(group, value[known]) / size.clip(1), kind="stable")
    p = np.empty(len(size))
    p[order] = isotonic_regression((right / size)[order]).x if len(size) else p
    p = p.clip(0, 1)[size > 1]
    m, r = size[size > 1], right[size > 1]
    expected = float((1 - p**m - (1 - p) ** m).sum())
    unlike = int(((r > 0) & (r < m)).sum())
    each = m * p * (1 - p)  # variance of r, and of its square
    squares = float(((r - m * p) ** 2).sum() - each.sum())
    spread = float((2 * each**2 + each * (1 - 6 * p * (1 - p))).clip(0).sum()) ** 0.5
    if unlike <= UNLIKE * expected:
        if expected >= EXPECTED:
            return True
    elif squares <= max(DEVIATIONS * spread, (EFFECT - 1) * float(each.sum())):
        return False
    return step is None or _uneven(value[known], step)


def _step(values: Array, spread: float) -> float | None:
    """Return the step of scores [n] that have few digits, or few values at equal distances."""
    if not spread:
        return 1.0
    decimal = float(10.0 ** np.floor(np.log10(COARSE * spread) + 0.5))
    apart = np.diff(np.unique(values))
    apart = apart[apart > SAME * spread]
    for step in (decimal, float(apart.min(initial=np.inf))):
        part = values / step if step == decimal else apart / step
        if len(part) and (np.abs(part - np.round(part)) < WHOLE).mean() > 0.5:
            return step
    return None


def _uneven(values: Array, step: float) -> bool:
    """Return whether scores of few digits [n] are not as many in a cell as by its neighbours."""
    from scipy.special import bdtrc

    places = np.round(values / step).astype(np.int64)
    places //= np.gcd.reduce(np.diff(np.unique(places)), initial=0) or 1
    first = int(places.min())
    count = np.bincount(places - first)
    count = count[np.arange(first, first + len(count)) % ROUND > 0]
    if (count > 0).sum() < FINE:
        return False
    count = np.pad(count, 4).astype(np.float64)
    mean = np.convolve(count, np.full(5, 0.2), "same")
    squares = (count - np.convolve(count, SMOOTH, "same")) ** 2
    used = mean > 0
    squares = squares[used] / (mean[used] * (1 + SMOOTH @ SMOOTH))
    n, many = len(squares), int((squares > UNEVEN).sum())
    return bool(bdtrc(many - 1, n, 0.05) < RARE)
