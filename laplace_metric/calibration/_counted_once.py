"""Copies count once: equal queries are one query, however often it was asked.

Tests of a guarantee count independent queries. A question that stands in a log many times was drawn
once; which of its copies counts is drawn at random, so that it is judged as any of them.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from laplace_metric.errors import DependentQueriesWarning, callers_line

FEW = 0.01
"""Share of copies that passes without a word: most collections hold a few."""


def counted_once(
    order: npt.NDArray[np.int_],
    same: npt.NDArray[np.int_],
    group: npt.NDArray[np.intp] | None = None,
) -> npt.NDArray[np.int_]:
    """Return ``order`` [n] without rows that equal an earlier one of another group.

    Parameters
    ----------
    order : [n]
        Rows in random order, which draws the one of its equals that counts.
    same : [N]
        Number of each row; equal rows have the same.
    group : [N] or None
        Number of the group of each row; None: each is by itself.

    Examples
    --------
    >>> same = np.array([0, 1, 0, 0])
    >>> counted_once(np.array([2, 1, 0, 3]), same).tolist()
    [2, 1]
    >>> counted_once(np.array([2, 1, 0, 3]), same, np.array([5, 5, 6, 6])).tolist()
    [2, 1, 3]
    """
    _, first, number = np.unique(same[order], return_index=True, return_inverse=True)
    own = np.arange(len(same)) if group is None else group
    return order[own[order] == own[order[first]][number]]


def warn_of_copies(copies: int, n: int, what: str, therefore: str) -> bool:
    """Warn if more than a hundredth of n rows are copies of others; return whether they are.

    Parameters
    ----------
    copies, n : int
        Number of rows that equal another one, and of all rows.
    what : str
        Noun for the rows.
    therefore : str
        End of the message: the consequence, and what to do.

    Warns
    -----
    DependentQueriesWarning
        With their number and share.
    """
    many = copies > FEW * n
    if many:
        warnings.warn(
            f"{copies / n:.0%} of the {what} are copies of others ({copies:,} of {n:,}). "
            f"{therefore}",
            DependentQueriesWarning,
            stacklevel=callers_line(),
        )
    return many
