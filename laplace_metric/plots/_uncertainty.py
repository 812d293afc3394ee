"""Uncertainty plot: histograms of an uncertainty, queries against out-of-distribution inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from laplace_metric._utils.validation import ArrayLike, Floats, as_scores
from laplace_metric.plots._style import finish_figure, prepare, styles_of


def uncertainty_plot(
    queries: ArrayLike,
    ood: Mapping[str, ArrayLike],
    axes: Axes | None = None,
    bins: int = 30,
    *,
    name: str = "uncertainty",
) -> Figure:
    """Plot histograms of one number of each input, queries against out-of-distribution inputs.

    The axis is logarithmic where all values are positive and span more than a factor 10.

    Parameters
    ----------
    queries : array [N]
        Uncertainty of each query.
    ood : mapping of name to array [M]
        Uncertainties of each set of out-of-distribution inputs, by its name in the legend.
    axes : Axes, optional
        Axes to draw into. None, the default: a new figure.
    bins : int
        Number of bins. Default: 30.
    name : str
        Name of the number, such as "epistemic", for the axis. Default: "uncertainty".

    Raises
    ------
    InputError
        For too many sets.

    Examples
    --------
    >>> figure = uncertainty_plot([0.1, 0.2], {"noise": [0.3, 0.4]})
    >>> len(figure.axes[0].patches)
    2
    """
    values = {"queries": as_scores("queries", queries).cpu().numpy()}
    values |= {key: as_scores(key, scores).cpu().numpy() for key, scores in ood.items()}
    axes = prepare(axes, name, "share of inputs")
    pooled = np.concatenate(list(values.values()))
    logarithmic = bool(pooled.min() > 0 and pooled.max() > 10 * pooled.min())
    edges = _edges(pooled, bins, logarithmic)
    for style, (key, scores) in zip(styles_of(values), values.items(), strict=True):
        share = np.histogram(scores, edges)[0] / len(scores)
        axes.stairs(share, edges, fill=True, facecolor=(style.colour, 0.25), hatch=style.hatch,
                    edgecolor=style.colour, ls=style.line, lw=1.5, label=key)  # fmt: skip
    if logarithmic:
        _scale_log(axes, pooled)
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    return finish_figure(axes, percent="y")


def _edges(values: Floats, bins: int, logarithmic: bool) -> Floats:
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    if not logarithmic:
        return np.linspace(low, high, bins + 1)
    edges = np.geomspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high  # not left out by rounding
    return edges


def _scale_log(axes: Axes, values: Floats) -> None:
    """Set a logarithmic x axis with a few plain numbers: 1, 2, 5 a decade, or decades alone."""
    wide = bool(values.max() > 300 * values.min())
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
