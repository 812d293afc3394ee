"""One function a plot: values in, a matplotlib ``Figure`` out (or drawn into given axes).

Nothing global is touched: no pyplot, no rcParams. Series differ in colour (Okabe & Ito 2008, safe
for colour-blind readers), line style and marker. Ink has one colour, `INK`, that a web page may
replace by its own text colour.

matplotlib figures as inline SVG that follows the page's text colour.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from laplace_metric._utils.validation import ArrayLike, as_scores
from laplace_metric.errors import InputError
from laplace_metric.evaluation import Reliability, RocCurve, Sparsification

INK = "#010203"
SIZE, TALL = (4.2, 3.2), (4.2, 3.9)
FONT = 10
RARE = 0.02  # a bin with a smaller share of the queries is not joined to the others
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Style:
    """How one series looks, in three ways at once."""

    colour: str
    line: str
    marker: str
    hatch: str


STYLES = (
    Style("#0072B2", "--", "o", "//"),
    Style("#D55E00", "-.", "s", "\\\\"),
    Style("#009E73", "-", "^", ".."),
    Style("#CC79A7", ":", "D", "xx"),
    Style("#E69F00", (0, (5, 1, 1, 1, 1, 1)), "v", "++"),  # type: ignore[arg-type]
    Style("#56B4E9", (0, (8, 2)), "P", "oo"),  # type: ignore[arg-type]
)


def roc_plot(
    curves: Mapping[str, RocCurve], axes: Axes | None = None, *, legend_below: bool = False
) -> Figure:
    """ROC curves of several methods on one strange set, and the diagonal of guessing.

    ``legend_below`` makes room for long names under the axes.

    Examples
    --------
    >>> from laplace_metric.evaluation import roc_curve
    >>> figure = roc_plot({"norm": roc_curve([0.1, 0.2], [0.3, 0.4])})
    >>> len(figure.axes[0].lines)
    2
    """
    size = TALL if legend_below else SIZE
    axes = prepare(axes, "queries flagged", "strange inputs flagged", size)
    axes.plot([0, 1], [0, 1], color=INK, lw=1, ls=":", alpha=0.6, label="guessing")
    for style, (name, curve) in zip(_styles(curves), curves.items(), strict=True):
        x, y = curve.fpr.cpu().numpy(), curve.tpr.cpu().numpy()
        axes.plot(x, y, color=style.colour, ls=style.line, lw=2, label=name)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    return _finish(axes, percent="xy", legend_below=legend_below)


def sparsification_plot(
    results: Mapping[str, Sparsification], reference: str | None = None, axes: Axes | None = None
) -> Figure:
    """Recall of the queries that are left as the least certain are removed.

    Parameters
    ----------
    results : mapping of method to Sparsification
    reference : str, optional
        The method whose random and oracle curves are drawn; default: the last one. They differ
        between methods only as far as recall@1 does.

    Examples
    --------
    >>> from laplace_metric.evaluation import sparsification
    >>> figure = sparsification_plot({"norm": sparsification([0.1, 0.2], [1, 0])})
    >>> len(figure.axes[0].lines)
    3
    """
    axes = prepare(axes, "least certain queries removed", "recall@1 of the rest")
    styles = _styles(results)
    shown = list(results)[-1] if reference is None else reference
    if shown not in results:
        raise InputError(f"reference={shown!r} is not among {', '.join(results)}.")
    bounds = results[shown]
    x = _array(bounds.fractions)
    axes.plot(x, _array(bounds.oracle), color=INK, lw=1, ls="-", alpha=0.7, label="oracle")
    axes.plot(x, _array(bounds.random), color=INK, lw=1, ls=":", alpha=0.7, label="random")
    for style, (name, result) in zip(styles, results.items(), strict=True):
        axes.plot(x, _array(result.curve), color=style.colour, ls=style.line, lw=2, label=name)
    axes.set_xlim(-0.01, 1)
    return _finish(axes, percent="xy")


def reliability_plot(results: Mapping[str, Reliability], axes: Axes | None = None) -> Figure:
    """Accuracy against confidence, one point for each bin that holds queries.

    The area of a point grows with the share of the queries in its bin; a line joins the bins that
    hold at least 2 % of them, for the accuracy of the others is chance.

    Examples
    --------
    >>> from laplace_metric.evaluation import expected_calibration_error
    >>> figure = reliability_plot({"vote": expected_calibration_error([0.5, 1.0], [0, 1])})
    >>> len(figure.axes[0].lines), len(figure.axes[0].collections)
    (2, 1)
    """
    axes = prepare(axes, "confidence", "accuracy")
    axes.plot([0, 1], [0, 1], color=INK, lw=1, ls=":", alpha=0.6, label="honest")
    for style, (name, result) in zip(_styles(results), results.items(), strict=True):
        count = _array(result.bin_count)
        x, y, share = (
            values[count > 0]
            for values in (
                _array(result.bin_confidence),
                _array(result.bin_accuracy),
                count / count.sum(),
            )
        )
        often = share >= RARE
        axes.plot(x[often], y[often], color=style.colour, ls=style.line, lw=1.2)
        axes.scatter(
            x,
            y,
            s=8 + 140 * share,
            marker=style.marker,
            facecolors=[(style.colour, 0.3)] * len(x),
            edgecolors=style.colour,
            label=name,
        )
    axes.set(xlim=(-0.03, 1.05), ylim=(-0.03, 1.05))
    return _finish(axes, percent="xy")


def uncertainty_plot(
    queries: ArrayLike, strange: Mapping[str, ArrayLike], axes: Axes | None = None, bins: int = 30
) -> Figure:
    """Histograms of one method's uncertainty, queries against strange inputs.

    The axis is logarithmic where all values are positive and span more than a factor 10.

    Parameters
    ----------
    queries : [N]
    strange : mapping of name to [M]

    Examples
    --------
    >>> figure = uncertainty_plot([0.1, 0.2], {"noise": [0.3, 0.4]})
    >>> len(figure.axes[0].patches)
    2
    """
    values = {"queries": as_scores("queries", queries).cpu().numpy()}
    values |= {name: as_scores(name, scores).cpu().numpy() for name, scores in strange.items()}
    axes = prepare(axes, "uncertainty", "share of inputs")
    pooled = np.concatenate(list(values.values()))
    logarithmic = bool(pooled.min() > 0 and pooled.max() > 10 * pooled.min())
    edges = _edges(pooled, bins, logarithmic)
    for style, (name, scores) in zip(_styles(values), values.items(), strict=True):
        share = np.histogram(scores, edges)[0] / len(scores)
        axes.stairs(
            share,
            edges,
            fill=True,
            facecolor=(style.colour, 0.25),
            label=name,
            edgecolor=style.colour,
            hatch=style.hatch,
            ls=style.line,
            lw=1.5,
        )
    if logarithmic:
        _scale_log(axes, pooled)
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    return _finish(axes, percent="y")


def svg_of(figure: Figure) -> str:
    """The figure as SVG with a transparent ground, letters as outlines (no font is needed)."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _edges(values: Array, bins: int, logarithmic: bool) -> Array:
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    if not logarithmic:
        return np.linspace(low, high, bins + 1)
    edges = np.geomspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high  # not left out by rounding
    return edges


def _scale_log(axes: Axes, values: Array) -> None:
    """A logarithmic x axis with a few plain numbers: 1, 2, 5 a decade, or the decades alone."""
    wide = bool(values.max() > 300 * values.min())
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _array(values: object) -> Array:
    return np.asarray(values, dtype=np.float64)


def _styles(series: Mapping[str, object]) -> tuple[Style, ...]:
    if not 0 < len(series) <= len(STYLES):
        raise InputError(f"{len(series)} series to plot: give 1 to {len(STYLES)}.")
    return STYLES[: len(series)]


def prepare(axes: Axes | None, x: str, y: str, size: tuple[float, float] = SIZE) -> Axes:
    """Axes with quiet frames and labels, on a new figure unless given."""
    if axes is None:
        axes = Figure(figsize=size, layout="constrained").add_subplot()
    axes.set_facecolor("none")
    axes.set_xlabel(x, color=INK, fontsize=FONT)
    axes.set_ylabel(y, color=INK, fontsize=FONT)
    axes.tick_params(which="both", colors=INK, labelsize=FONT - 1)
    axes.grid(color=INK, alpha=0.12, lw=0.8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    return axes


def _finish(axes: Axes, percent: str, legend_below: bool = False) -> Figure:
    for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if letter in percent:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
    axes.legend(fontsize=FONT - 1, frameon=False, labelcolor=INK, **(place if legend_below else {}))
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    return figure


def inline_svg(figure: Figure, prefix: str, description: str) -> Markup:
    """An ``<svg>`` to stand inside a page.

    Ids get ``prefix`` and a running number, so that figures on one page do not share any, and
    the same figure always gives the same text. `INK` becomes ``currentColor``.

    Parameters
    ----------
    figure : Figure
    prefix : str
        Unique on the page.
    description : str
        Read out instead of the picture.
    """
    svg = svg_of(figure)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    ids = {old: f"{prefix}-{i}" for i, old in enumerate(re.findall(r'\bid="([^"]+)"', svg))}
    svg = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{ids[m[1]]}"', svg)
    svg = re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m[1] + ids[m[2]], svg)
    svg = svg.replace(INK, "currentColor")
    size = r'width="[\d.]+pt" height="[\d.]+pt"|height="[\d.]+pt"|width="[\d.]+pt"'
    head, rest = svg.split(">", 1)
    head = re.sub(size, "", head)
    return Markup(f'{head} role="img" aria-label="{escape(description)}">{rest}')
