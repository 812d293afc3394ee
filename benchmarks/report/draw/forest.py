"""Differences with their intervals, one line each."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from benchmarks.report.draw.frame import FAINT
from benchmarks.report.draw.marks import element, marker, picture, trace
from benchmarks.report.draw.scale import Axis, around
from laplace_metric.plots import STYLES, Style

Interval = tuple[float, float, float]
"""Difference, low, high."""
PLOT, RIGHT, LINE, LETTER = 185.0, 12.0, 20.0, 7.2
BETTER, WORSE, EITHER = STYLES[0], STYLES[1], STYLES[3]


def forest(label: str, x: str, differences: Mapping[str, Interval], sign: int) -> Markup:
    """A dot and a line for each method, and a zero line; ``sign`` +1: right of it is good."""
    axis = around(x, [0.0, *(value for ends in differences.values() for value in ends)])
    left = LETTER * max(len(name) for name in differences) + 12
    height = LINE * len(differences) + 42
    lines = [
        _line(axis, left, LINE * i + 14, name, ends, _style(ends, sign))
        for i, (name, ends) in enumerate(differences.items())
    ]
    return picture(left + PLOT + RIGHT, height, label, _ground(axis, left, height), *lines)


def _ground(axis: Axis, left: float, height: float) -> Markup:
    """Vertical lines, the one of zero solid, and what they mean."""
    floor, middle = height - 36, left + PLOT / 2
    marks = [element("text", axis.label, x=middle, y=height - 6, text_anchor="middle")]
    for value in axis.ticks(4):
        at = left + PLOT * axis.share(value)
        marks.append(trace([(at, 2), (at, floor)], **(FAINT if value else {**FAINT, "opacity": 1})))
        marks.append(element("text", axis.text(value), x=at, y=floor + 14, text_anchor="middle"))
    return Markup("").join(marks)


def _line(axis: Axis, left: float, y: float, name: str, ends: Interval, style: Style) -> Markup:
    words = f"{name}: {ends[0]:+.3f} [{ends[1]:+.3f}, {ends[2]:+.3f}]"
    at, low, high = ((left + PLOT * axis.share(value), y) for value in ends)
    named = element("text", name, x=left - 8, y=y + 4, text_anchor="end")
    line = trace([low, high], stroke=style.colour, stroke_width=2)
    return element("g", element("title", words), named, line, marker(style, at))


def _style(ends: Interval, sign: int) -> Style:
    """Filled circles where Laplace is better, squares where worse, diamonds where neither."""
    if ends[1] <= 0 <= ends[2]:
        return EITHER
    return BETTER if ends[0] * sign > 0 else WORSE
