"""One function a plot: values in, a matplotlib ``Figure`` out (or drawn into given axes).

A monitored stream: every quantity over time, and the evidence of drift below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores
from laplace_metric.errors import InputError
from laplace_metric.evaluation import Reliability
from laplace_metric.evaluation._share_interval import share_interval
from laplace_metric.plots._style import (
    FONT,
    INK,
    STYLES,
    ShownFigure,
    finish_figure,
    prepare,
    styles_of,
    wilson_interval,
)

RARE = 0.02
"""A bin with a smaller share of the queries is not joined to the others."""
Array = npt.NDArray[np.float64]


def reliability_plot(results: Mapping[str, Reliability], axes: Axes | None = None) -> Figure:
    """Accuracy against confidence, one point and its 95 % interval for each bin with queries.

    The area of a point grows with the share of the queries in its bin; a line joins the bins that
    hold at least 2 % of them, for the accuracy of the others is chance. Intervals are Wilson's
    (`wilson_interval`); the legend has the number of queries.

    Parameters
    ----------
    results : mapping of method to Reliability
    axes : Axes, optional
        Where to draw; default: a new figure.

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


def uncertainty_plot(
    queries: ArrayLike,
    ood: Mapping[str, ArrayLike],
    axes: Axes | None = None,
    bins: int = 30,
    *,
    name: str = "uncertainty",
) -> Figure:
    """Histograms of one number of each input, queries against out-of-distribution inputs.

    The axis is logarithmic where all values are positive and span more than a factor 10.

    Parameters
    ----------
    queries : array [N]
    ood : mapping of name to array [M]
    axes : Axes, optional
        Where to draw; default: a new figure.
    bins : int
    name : str
        What the number is, such as "epistemic", for the axis.

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


# What is gained by not answering: how often the surest answers are right.


FEW = 0.05
"""A smaller share of the queries does not set the height of the axis."""


def answering_plot(
    uncertainty: Mapping[str, ArrayLike],
    correct: ArrayLike,
    *,
    marks: Mapping[str, float] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Share of right answers among the surest, for every share of queries that is answered.

        coverage(u) = mean 1[u_i <= u],   precision(u) = sum 1[u_i <= u] y_i / sum 1[u_i <= u]

    The first curve has an exact 95 % interval at each share (``share_interval``), not of all shares
    at once. A curve begins at one query: its left end is chance.

    Parameters
    ----------
    uncertainty : mapping of name to array [Q]
        Higher is less certain; of the same queries.
    correct : array [Q]
        Whether each answer is right.
    marks : mapping of text to float, optional
        Largest uncertainties that are answered, on the first curve; a mark without an answer is
        left out.
    axes : Axes, optional
        Where to draw; default: a new figure.

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
        values, accepted, good = _counts(u.cpu().numpy(), right)
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


def _counts(scores: Array, right: Array) -> tuple[Array, Array, Array]:
    """Different scores, rising, how many queries have one or less, and how many are right."""
    order = np.argsort(scores, kind="stable")
    last = np.diff(scores[order], append=np.inf) != 0  # ties are answered together
    accepted = np.arange(1, len(scores) + 1, dtype=np.float64)
    return scores[order][last], accepted[last], np.cumsum(right[order])[last]


# Which probability to accept: precision and coverage at every threshold.


def threshold_plot(
    probability: ArrayLike,
    correct: ArrayLike,
    *,
    target: float | None = None,
    threshold: float | None = None,
    abstained: ArrayLike | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Share of accepted answers that are right, and of all queries that are accepted.

        precision(t) = sum 1[p_i >= t] y_i / sum 1[p_i >= t],   coverage(t) = mean 1[p_i >= t]

    Parameters
    ----------
    probability : array [Q]
    correct : array [Q]
        Whether each answer is right.
    target : float, optional
        A precision, drawn as a level.
    threshold : float, optional
        That promises it, drawn as a mark.
    abstained : array [Q], optional
        Which queries no threshold accepts, such as unknown ones.
    axes : Axes, optional
        Where to draw; default: a new figure.

    Raises
    ------
    InputError
        For arrays of other shapes.

    Examples
    --------
    >>> figure = threshold_plot([0.2, 0.6, 0.9], [0, 1, 1], target=0.9, threshold=0.6)
    >>> len(figure.axes[0].lines)
    4
    """
    p = as_scores("probability", probability)
    right = as_rates("correct", correct, p, "probability").cpu().numpy()
    values, n = p.cpu().numpy(), len(p)
    if abstained is not None:
        answered = as_rates("abstained", abstained, p, "probability").cpu().numpy() == 0
        values, right = values[answered], right[answered]
    limits, accepted, good = _counts(-values, right)
    x = -limits
    curves = {"right, of those accepted": good / accepted, "accepted, of all queries": accepted / n}
    axes = prepare(axes, "threshold on the probability", "share of held-out queries")
    for style, (name, y) in zip(styles_of(curves), curves.items(), strict=True):
        mark = "o" if len(x) == 1 else ""  # of a single probability, a step has no length
        axes.step(
            x, y, where="post", color=style.colour, ls=style.line, lw=2, marker=mark, label=name
        )
    if target is not None:
        axes.axhline(target, color=INK, lw=1, ls=":", alpha=0.6)
    if threshold is not None:
        label = f"accept from {threshold:.3f}"
        axes.axvline(threshold, color=INK, lw=1.2, alpha=0.8, label=label)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.05))
    return finish_figure(axes, percent="xy")


# A monitored stream: every quantity over time, and the evidence of drift below.

WINDOW, REFERENCE, MARK = STYLES[0], STYLES[2], STYLES[1]


def monitor_plot(
    windows: Sequence[Any],
    alarms: Sequence[Any],
    alarm_level: float,
    *,
    change: int | None = None,
) -> Figure:
    """One panel a quantity, with the median and the 5-95 % band of each window, then the evidence.

    The evidence is known at the end of every window, and at its alarm, where it reaches the level:
    the curves go through both.

    Parameters
    ----------
    windows : sequence of ``monitor.WindowReport``
    alarms : sequence of ``monitor.Alarm``
    alarm_level : float
        log10 of the evidence that raises one.
    change : int, optional
        The query after which the stream is known to be another one.

    Raises
    ------
    InputError
        If there is no window.

    Examples
    --------
    >>> from laplace_metric.monitor import Monitor
    >>> reports = Monitor({"u": np.arange(100.0)}, window=50).update({"u": np.arange(100.0)})
    >>> len(monitor_plot(reports, [], 2.0).axes)
    2
    """
    if not windows:
        raise InputError("no full window to plot: more queries have to come first.")
    names = list(windows[0].shift_tests)
    rows = len(names) + 1
    figure = ShownFigure(figsize=(7.2, 1.5 + 1.7 * rows), layout="constrained")
    panels = figure.subplots(rows, 1, sharex=True)
    for axes, name in zip(panels, names, strict=False):
        _draw_quantity(prepare(axes, "", name), windows, name)
    evidence = prepare(panels[-1], "queries", "evidence of drift (log10)")
    _draw_evidence(evidence, windows, alarms, alarm_level)
    for axes, name in zip(panels, names, strict=False):
        _mark(axes, [alarm for alarm in alarms if alarm.name == name], change)
    _mark(evidence, alarms, change)
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), list(found), loc="outside lower center", ncols=3,
                  fontsize=FONT - 1, frameon=False, labelcolor=INK)  # fmt: skip
    return figure


def _mark(axes: Axes, alarms: Sequence[Any], change: int | None) -> None:
    """When the stream changed, if that is known; when that was told, and what was estimated."""
    if change is not None:
        axes.axvline(change, color=INK, lw=1.4, label=f"change, after query {change:,}")
    for alarm in alarms:
        axes.axvline(alarm.at, color=MARK.colour, ls=MARK.line, lw=1.2, label="alarm")
        axes.axvline(alarm.since, color=MARK.colour, ls=":", lw=1.2, label="its estimate of the "
                     "change")  # fmt: skip


def _draw_quantity(axes: Axes, windows: Sequence[Any], name: str) -> None:
    x = np.array([(window.first + window.last) / 2 for window in windows])
    reference = windows[0].shift_tests[name].reference
    axes.axhspan(reference.low, reference.high, facecolor=(REFERENCE.colour, 0.18),
                 label="reference, 5 to 95%")  # fmt: skip
    axes.axhline(reference.median, color=REFERENCE.colour, ls=REFERENCE.line, lw=1.2)
    spreads = [window.shift_tests[name].window for window in windows]
    medians = np.array([s.median for s in spreads])
    bars = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    axes.errorbar(x, medians, bars, color=WINDOW.colour, fmt=WINDOW.marker, ms=4, lw=1.2,
                  label="window, median and 5 to 95%")  # fmt: skip
    drifted = np.array([name in window.drifted for window in windows])
    axes.plot(x[drifted], medians[drifted], MARK.marker, color=MARK.colour, ms=8, mfc="none",
              mew=1.6, label="drifted")  # fmt: skip


def _draw_evidence(
    axes: Axes, windows: Sequence[Any], alarms: Sequence[Any], alarm_level: float
) -> None:
    names = windows[0].evidence
    for style, name in zip(STYLES * len(names), names, strict=False):
        points = {0: 0.0, **{alarm.at: alarm_level for alarm in alarms if alarm.name == name}}
        points |= {window.last: window.evidence[name] for window in windows}
        x = sorted(points)
        axes.plot(x, [points[at] for at in x], color=style.colour, ls=style.line,
                  marker=style.marker, ms=4, label=f"evidence, {name}")  # fmt: skip
    for alarm in alarms:
        axes.plot(alarm.at, alarm_level, "*", ms=11, color=MARK.colour)
        axes.annotate(f"{alarm.at:,}", (alarm.at, alarm_level), (6, -4), va="top", color=INK,
                      textcoords="offset points", fontsize=FONT - 2)  # fmt: skip
    axes.axhline(
        alarm_level, color=INK, lw=1, ls=":", label=f"level of an alarm, {alarm_level:.2g}"
    )
    axes.set_yscale("symlog", linthresh=alarm_level)
    low, high = axes.get_ylim()
    steps = [0.0] + [
        sign * step * 10.0**k for sign in (1, -1) for k in range(5) for step in (1, 2, 5)
    ]
    axes.set_yticks([y for y in steps if low <= y <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
