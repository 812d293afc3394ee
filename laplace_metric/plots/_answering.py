"""Answering plot: how often the most certain answers are right, at every coverage."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores
from laplace_metric.errors import InputError
from laplace_metric.evaluation._share_interval import share_interval
from laplace_metric.plots._accepted_counts import accepted_counts
from laplace_metric.plots._style import FONT, INK, finish_figure, prepare, styles_of

# The gain of not answering: the share of right answers among the most certain ones.


FEW = 0.05
"""A smaller share of the queries does not set the height of the axis."""


def answering_plot(
    uncertainty: Mapping[str, ArrayLike],
    correct: ArrayLike,
    *,
    marks: Mapping[str, float] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Plot the share of right answers among the most certain, for every share of queries answered.

        coverage(u) = mean 1[u_i <= u],   precision(u) = sum 1[u_i <= u] y_i / sum 1[u_i <= u]

    The first curve has an exact 95 % interval at each share (``share_interval``), not of all shares
    at once. A curve begins at one query: its left end is chance.

    Parameters
    ----------
    uncertainty : mapping of name to array [Q]
        Uncertainty of each query by the name of its curve, all of the same queries; higher is less
        certain.
    correct : array [Q]
        True, or 1, if the answer to the query is right.
    marks : mapping of text to float, optional
        Largest uncertainties that are answered, by their text, marked on the first curve; a mark
        without an answer is left out. None, the default: no marks.
    axes : Axes, optional
        Axes to draw into. None, the default: a new figure.

    Raises
    ------
    InputError
        For no score, more than there are styles, answers that are neither right nor wrong, or
        arrays of other shapes.

    Examples
    --------
    >>> figure = answering_plot({"p": [0.1, 0.4, 0.8]}, [1, 1, 0], marks={"90%": 0.5})
    >>> [round(float(y), 2) for y in figure.axes[0].lines[0].get_ydata()]
    [1.0, 1.0, 0.67]
    """
    styles, lowest = styles_of(uncertainty), 1.0
    axes = prepare(axes, "queries answered, the surest first", "right, of those answered")
    for style, (name, scores) in zip(styles, uncertainty.items(), strict=True):
        u = as_scores(name, scores)
        right = as_rates("correct", correct, u, name).cpu().numpy()
        if not np.isin(right, (0, 1)).all():
            raise InputError("correct has values between 0 and 1: pass booleans, or 0 and 1.")
        values, accepted, good = accepted_counts(u.cpu().numpy(), right)
        share, precision = accepted / accepted[-1], good / accepted
        axes.plot(share, precision, color=style.colour, ls=style.line, lw=2, label=name)
        lowest = min(lowest, float(precision[share >= FEW].min()))
        if style is not styles[0]:
            continue
        low, high = share_interval(good, accepted)
        axes.fill_between(share, low, high, color=style.colour, alpha=0.15, lw=0)
        for text, limit in (marks or {}).items():
            if (at := int((values <= limit).sum()) - 1) >= 0:
                point = share[at], precision[at]
                axes.plot([point[0]], [point[1]], "o", ms=6, mfc="none", mec=INK, mew=1.5)
                axes.annotate(text, point, xytext=(0, -14), textcoords="offset points",
                              ha="center", fontsize=FONT - 1, color=INK)  # fmt: skip
    axes.set(xlim=(-0.01, 1.01), ylim=(max(-0.01, np.floor(10 * lowest - 1) / 10), 1.02))
    return finish_figure(axes, percent="xy")
