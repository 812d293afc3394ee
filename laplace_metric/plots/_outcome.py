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

SIZE = (8.4, 3.4)
"""Inches of the figure."""


def outcome_plot(probability: ArrayLike, right: ArrayLike, last: ArrayLike | None = None) -> Figure:
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
    if p.ndim != 1 or not len(p) or good.shape != p.shape or behind.shape != p.shape:
        raise InputError(
            f"probability has shape {list(p.shape)}, right {list(good.shape)} and last "
            f"{list(behind.shape)}: pass [Q] each, of one query or more."
        )
    figure = ShownFigure(figsize=SIZE, layout="constrained")
    first, second = figure.subplots(1, 2)
    answering_plot({"probability": 1 - p + behind}, good, axes=first)
    reliability_plot({"probability": expected_calibration_error(p, good)}, axes=second)
    return figure
