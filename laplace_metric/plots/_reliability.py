"""Reliability plot: accuracy against confidence, with the error of each bin."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laplace_metric.evaluation import Reliability
from laplace_metric.plots._style import INK, finish_figure, prepare, styles_of
from laplace_metric.plots._wilson import wilson_interval

RARE = 0.02
"""A bin with a smaller share of the queries is not joined to the others."""


def reliability_plot(results: Mapping[str, Reliability], axes: Axes | None = None) -> Figure:
    """Plot accuracy against confidence, one point and its 95 % interval for each bin with queries.

    The area of a point grows with the share of the queries in its bin; a line joins the bins that
    hold at least 2 % of them, for the accuracy of the others is chance. Intervals are Wilson's
    (`wilson_interval`); the legend has the number of queries.

    Parameters
    ----------
    results : mapping of method to Reliability
        Reliability of each method, by its name in the legend.
    axes : Axes, optional
        Axes to draw into. None, the default: a new figure.

    Raises
    ------
    InputError
        For no result, or more than there are styles.

    Examples
    --------
    >>> from laplace_metric.evaluation import expected_calibration_error
    >>> figure = reliability_plot({"vote": expected_calibration_error([0.5, 1.0], [0, 1])})
    >>> len(figure.axes[0].lines), len(figure.axes[0].collections)
    (2, 2)
    """
    axes = prepare(axes, "confidence", "accuracy")
    axes.plot([0, 1], [0, 1], color=INK, lw=1, ls=":", alpha=0.6, label="honest")
    for style, (name, result) in zip(styles_of(results), results.items(), strict=True):
        bins = result.bin_count, result.bin_confidence, result.bin_accuracy
        count, x, y = (np.asarray(values, dtype=np.float64) for values in bins)
        filled = count > 0
        x, y = x[filled], y[filled]
        share = count[filled] / count.sum()
        often = share >= RARE
        axes.plot(x[often], y[often], color=style.colour, ls=style.line, lw=1.2)
        fill = [(style.colour, 0.3)] * len(x)
        axes.scatter(x, y, s=8 + 140 * share, marker=style.marker, facecolors=fill,
                     edgecolors=style.colour, label=f"{name} (n = {count.sum():,.0f})")  # fmt: skip
        low, high = wilson_interval(y * count[filled], count[filled])
        axes.vlines(x, low, high, color=style.colour, lw=1)
    axes.set(xlim=(-0.03, 1.05), ylim=(-0.03, 1.05))
    return finish_figure(axes, percent="xy")
