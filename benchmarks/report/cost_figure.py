"""The plane of cost and quality as a matplotlib figure."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.report.blocks import points
from benchmarks.report.draw.plane import Method, frame_of, spread
from benchmarks.report.protocol_words import words
from benchmarks.report.reading import Record, described, parts
from benchmarks.report.series import group_style
from laplace_metric.plots import Style

SMALL, POINT = 8, 0.72
LINE = {"arrowstyle": "-", "lw": 0.5, "color": "#777", "shrinkA": 0, "shrinkB": 0}


def cost(record: Record) -> Figure:
    """The main metric against the CPU time of a query, one panel a task, numbers for names."""
    shown, main = parts(record), words(record["protocol"]).main
    figure = Figure(figsize=(3.6 * len(shown), 4.4), layout="constrained")
    groups = {row["method"]: row["group"] for row in record["rows"]}
    numbers = {name: str(i) for i, name in enumerate(groups, start=1)}
    for axes, part in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        panel(axes, points(part, main), numbers)
        axes.set_title(part.task)
    figure.axes[0].set_ylabel(described(main).name)
    key = [_key(group_style(groups[name]), f"{i} {name}") for name, i in numbers.items()]
    columns = max(2, 2 * len(shown))
    figure.legend(handles=key, loc="outside lower center", ncols=columns, fontsize=SMALL,
                  frameon=False)  # fmt: skip
    return figure


def _key(style: Style, name: str) -> Line2D:
    return Line2D([], [], ls="", marker=style.marker, color=style.colour, label=name)


def panel(axes: Axes, methods: list[Method], numbers: dict[str, str]) -> None:
    """Markers and their numbers, which keep clear of each other."""
    frame = frame_of(("CPU ms per query", ""), methods, 290.0, 300.0)
    x, y, places = frame.x, frame.y, frame.points([m.x for m in methods], [m.y for m in methods])
    for one, at, label in zip(methods, places, spread(places, frame), strict=True):
        axes.plot(one.x, one.y, one.style.marker, color=one.style.colour, ms=6)
        offset = POINT * (label[0] - at[0]), POINT * (at[1] - label[1])
        axes.annotate(numbers[one.name], (one.x, one.y), offset, fontsize=SMALL, ha="center",
                      va="center", textcoords="offset points", arrowprops=LINE)  # fmt: skip
    axes.set(xscale="log", xlabel=x.label, xlim=(x.low, x.high), ylim=(y.low, y.high))
    axes.set_xticks(x.ticks(), [x.text(value) for value in x.ticks()])
    axes.minorticks_off()
    quiet(axes)


def quiet(axes: Axes) -> None:
    """A faint grid, no box."""
    axes.grid(color="#000", alpha=0.12, lw=0.8)
    axes.tick_params(labelsize=SMALL)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
