"""A fit, and what fits to other queries say of each query: one split for hits and for scores.

With halves, one half fits and the other tests. With several parts all queries fit what answers, and
each part is judged by a fit to the others.

Cross-fitted probabilities are put on the scale of the fit that answers. These fits agree on which
hit is surer, but not on how sure: a step of one lies at .60, of another at .65. A threshold between
the two would accept, from the fit that answers, what no test has seen. So the i-th largest held-out
probability becomes the i-th largest that the answering fit gives to the same queries; where
held-out ones are equal, the largest of theirs. With p_i by the answering fit, and q_i the result
for the same n queries,

    #{i : q_i >= t}  >=  #{i : p_i >= t}        for every t

so that at any threshold a test counts at least as many answers as the fit gives to these queries.
No theorem covers what a fit to its own queries gives to others: such guarantees are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration._array_namespace import Array, Flags
from laplace_metric.calibration._group_column import split_by_group
from laplace_metric.calibration._hits import joined_arrays, mapped_arrays

M = TypeVar("M")
J = TypeVar("J")
Rows = npt.NDArray[np.int_]
PARTS, MOST_PARTS = 5, 20
"""Parts of a cross-fitted calibration by default, and at most."""
FEW = 1_000
"""Queries from which on halves guarantee much: fewer are cross-fitted."""


class HeldOut(NamedTuple):
    """A fit, and what was held out from it.

    Parameters
    ----------
    fit : any
        Fit that answers later queries.
    fitted, tested : [n]
        Rows of the queries that it was fitted to, and of those that test it.
    judged : any
        Numbers of all queries; of the tested ones by fits that did not see them.
    """

    fit: Any
    fitted: Rows
    tested: Rows
    judged: Any


def fit_and_judge(
    order: Rows,
    group: npt.NDArray[np.intp] | None,
    parts: int,
    fit: Callable[[Rows, M | None], M],
    judge: Callable[[M, Rows], J],
    on_scale: Callable[[J, J], J],
) -> HeldOut:
    """Fit to queries, and judge each by a fit that did not see it.

    Parameters
    ----------
    order : [n]
        Rows 0 to n - 1 in a random order, by which they are split.
    group : [n] or None
        Group of each query, none of which fits and tests at once; None: queries are independent.
    parts : int
        Number of parts, each judged by a fit to the others; 0: the first half fits, and the second
        tests.
    fit : function
        Function of rows, and of a fit to more of them whose choices are taken over, or None.
    judge : function
        Function of a fit and of rows that returns arrays, one entry a row.
    on_scale : function
        Function of what was judged by the fits to parts, and by the fit to all, which returns the
        first on the scale of the second.
    """
    split, every = split_by_group(order, group, parts or 2), np.arange(len(order))
    if not parts:
        kept = fit(split[0], None)
        return HeldOut(kept, split[0], split[1], judge(kept, every))
    kept = fit(order, None)
    tests = [judge(fit(np.setdiff1d(order, part), kept), part) for part in split]
    back = np.concatenate(split).argsort()
    judged = mapped_arrays(joined_arrays(tests), lambda values: values[back])
    return HeldOut(kept, order, order, on_scale(judged, judge(kept, every)))


def on_answering_scale(held_out: Array, answering: Array, counts: Flags) -> Array:
    """Return held-out values [Q, k] on the scale of ``answering`` [Q, k], each column for itself.

    Parameters
    ----------
    held_out, answering : [Q, k]
        Probabilities by the fits to other queries, and by the fit to all.
    counts : [Q, k]
        True where there is a hit; the rest stays as it is.

    Examples
    --------
    >>> held_out, answering = np.array([[0.6], [0.6], [0.9]]), np.array([[0.5], [0.7], [0.8]])
    >>> on_answering_scale(held_out, answering, np.ones((3, 1), bool))[:, 0]
    array([0.7, 0.7, 0.8])
    """
    scaled = held_out.copy()
    for column in range(held_out.shape[1]):
        rows = counts[:, column]
        _, place, ties = np.unique(held_out[rows, column], return_inverse=True, return_counts=True)
        scaled[rows, column] = np.sort(answering[rows, column])[ties.cumsum() - 1][place]
    return scaled
