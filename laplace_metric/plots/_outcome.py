"""Outcome plot: risk against coverage, and reliability, of labelled queries."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from laplace_metric._utils.validation import ArrayLike
from laplace_metric.errors import InputError
from laplace_metric.evaluation import expected_calibration_error
from laplace_metric.plots._answering import answering_plot
from laplace_metric.plots._reliability import reliability_plot
from laplace_metric.plots._shown_figure import ShownFigure
from laplace_metric.plots._style import INK, STYLES

SIZE = (8.4, 3.4)
"""Inches of the figure."""


def outcome_plot(
    probability: ArrayLike,
    right: ArrayLike,
    last: ArrayLike | None = None,
    *,
    answered: ArrayLike | None = None,
    precision: float | None = None,
) -> Figure:
    """Plot the share of right answers against the share answered, and against the probability.

    Parameters
    ----------
    probability : array [Q]
        Probability that the answer to each query is right.
    right : array [Q]
        True for each answer that is right.
    last : array [Q] of booleans, or None
        True for queries that are answered after all others, such as unfamiliar ones. None, the
        default: the probability alone orders them.
    answered : array [Q] of booleans, or None
        True for queries that a rule answers; their share, and the share of them that is right, is
        marked. None, the default: nothing is marked.
    precision : float in (0, 1] or None
        Precision that was guaranteed, drawn as a line. None, the default: none was.

    Raises
    ------
    InputError
        Without queries, and for arrays of other shapes.

    Examples
    --------
    >>> figure = outcome_plot([0.9, 0.8, 0.4], [True, True, False])
    >>> len(figure.axes)
    2
    """
    p, good = np.asarray(probability, np.float64), np.asarray(right, bool)
    behind = np.zeros(p.shape, bool) if last is None else np.asarray(last, bool)
    given = np.zeros(p.shape, bool) if answered is None else np.asarray(answered, bool)
    others = (good, behind, given)
    if p.ndim != 1 or not len(p) or any(x.shape != p.shape for x in others):
        raise InputError(
            f"probability has shape {list(p.shape)}, right {list(good.shape)}, last "
            f"{list(behind.shape)} and answered {list(given.shape)}: pass [Q] each, of one query "
            "or more."
        )
    figure = ShownFigure(figsize=SIZE, layout="constrained")
    first, second = figure.subplots(1, 2)
    answering_plot({"any threshold": 1 - p + behind}, good, axes=first)
    if precision is not None:
        first.axhline(precision, color=INK, linestyle=":", linewidth=1, label="guaranteed")
    if given.any():
        at = (given.mean(), good[given].mean())
        first.plot(*at, "o", color=STYLES[1].colour, zorder=4, label="this rule")
    first.legend(frameon=False, loc="lower left")
    reliability_plot({"probability": expected_calibration_error(p, good)}, axes=second)
    return figure
