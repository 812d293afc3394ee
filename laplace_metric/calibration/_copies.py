"""Copies among the calibration queries: one question that stands in a log many times.

Tests of a guarantee count independent queries. Copies have equal scores and equal judgements.
Equal scores alone are no copies: scores of one decimal, or of reciprocal ranks, have few values.
Different queries with equal scores are judged differently, though, as often as their chance of a
match p says: of a group of m,

    P(not all judged alike) = 1 - p^m - (1 - p)^m

with p a non-decreasing function of the score, by isotonic regression of the groups. Where far fewer
groups than the sum of these, E, are judged differently, the rows are copies. With groups of sizes
m, the variance of a share of n queries is sum m^2 / n times that of independent ones (the design
effect of Kish 1965). A fifth more makes 7 % of the 5 % in which a guarantee may be broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration._arrays import Array, Flags, Judged

SAME = 1e-6
"""Largest difference of copies, in standard deviations of a column: rounding of float32."""
COARSE, WHOLE = 1e-3, 1e-3
"""Scores are rounded if they are multiples of about this share of their standard deviation, up to
this share of a step."""
EFFECT = 1.2
"""Largest design effect of copies that pass without a word."""
EXPECTED, UNLIKE = 7.0, 0.25
"""E from which on copies are certain, and the share of E that may be judged differently then."""


@dataclass(frozen=True)
class Copies:
    """Rows that equal an earlier one.

    Parameters
    ----------
    first : [Q]
        True for the first row of each group of equal rows.
    certain : bool
        True if equal scores without copies would be judged differently more often.
    """

    first: Flags
    certain: bool


def copies_among(values: Array, exists: Flags, judged: Judged, columns: list[Array]) -> Copies:
    """Return which queries are copies of others.

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
    >>> int(found.first.sum()), found.certain
    (40, True)
    """
    n = len(values)
    nothing = np.where(exists[:, 0], 0.0, np.arange(n))  # lists without a hit are no copies
    rows = np.column_stack([values.reshape(n, -1), *columns, exists.sum(1), nothing])
    group = equal_rows(rows, rows.std(0))
    first = np.zeros(n, bool)
    first[np.unique(group, return_index=True)[1]] = True
    by_chance = n**2 * SAME / (2 * np.pi**0.5) if rows.shape[1] == 3 else 0.0  # of normal scores
    none = Copies(np.ones(n, bool), False)
    if (np.bincount(group) ** 2).sum() / n <= EFFECT + 6 * by_chance / n:
        return none
    expected, unlike = _judged_differently(group, values[:, 0, 0], judged)
    if unlike > UNLIKE * expected:
        return none
    certain = expected >= EXPECTED
    value = values[..., 0]
    rounded = _rounded(value[~first][exists[~first]], float(value[exists].std()))
    return Copies(first, certain) if certain or not rounded else none


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


def _judged_differently(
    group: npt.NDArray[np.int_], value: Array, judged: Judged
) -> tuple[float, int]:
    """Return E, and the number of groups that are judged differently, by their first hits."""
    from scipy.optimize import isotonic_regression

    known = judged[:, 0] >= 0
    _, group = np.unique(group[known], return_inverse=True)
    size = np.bincount(group)
    share = np.bincount(group, judged[known, 0]) / size.clip(1)
    at = np.bincount(group, value[known]) / size.clip(1)
    order = np.argsort(at, kind="stable")
    p = np.empty(len(size))
    p[order] = isotonic_regression(share[order]).x if len(size) else p
    p = p.clip(0, 1)
    many = size > 1
    expected = (1 - p**size - (1 - p) ** size)[many].sum()
    return float(expected), int(((share > 0) & (share < 1) & many).sum())


def _rounded(values: Array, spread: float) -> bool:
    """Return whether most of these scores have few digits."""
    if not spread:
        return True
    part = values / 10.0 ** np.floor(np.log10(COARSE * spread) + 0.5)
    return bool((np.abs(part - np.round(part)) < WHOLE).mean() > 0.5)
