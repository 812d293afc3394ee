"""Differences with their intervals, one line each."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from benchmarks.report.draw.frame import FAINT
from benchmarks.report.draw.marks import element, marker, picture, trace
from benchmarks.report.draw.scale import around
from laplace_metric.plots import STYLES, Style

Interval = tuple[float, float, float]
"""Difference, low, high."""
WIDTH, LEFT, RIGHT, LINE = 400.0, 160.0, 14.0, 20.0
BETTER, WORSE, EITHER = STYLES[0], STYLES[1], STYLES[3]


def forest(label: str, x: str, differences: Mapping[str, Interval], sign: int) -> Markup:
    """A dot and a line for each method, and a zero line; ``sign`` +1: right of it is good."""
    axis = around(x, [0.0, *(value for ends in differences.values() for value in ends)])
    height = LINE * len(differences) + 42

    def place(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * axis.share(value)

    marks = []
    for value in axis.ticks(4):
        at, floor = place(value), height - 36
        marks.append(trace([(at, 2), (at, floor)], **(FAINT if value else {**FAINT, "opacity": 1})))
        marks.append(element("text", axis.text(value), x=at, y=floor + 14, text_anchor="middle"))
    for i, (name, ends) in enumerate(differences.items()):
        y = LINE * i + 14
        style = _style(ends, sign)
        words = f"{name}: {ends[0]:+.3f} [{ends[1]:+.3f}, {ends[2]:+.3f}]"
        line = trace([(place(ends[1]), y), (place(ends[2]), y)], stroke=style.colour,
                     stroke_width=2)  # fmt: skip
        named = element("text", name, x=LEFT - 8, y=y + 4, text_anchor="end")
        dot = marker(style, (place(ends[0]), y))
        marks.append(element("g", element("title", words), named, line, dot))
    middle = (LEFT + WIDTH - RIGHT) / 2
    marks.append(element("text", axis.label, x=middle, y=height - 6, text_anchor="middle"))
    return picture(WIDTH, height, label, *marks)


def _style(ends: Interval, sign: int) -> Style:
    """Filled circles where Laplace is better, squares where worse, diamonds where neither."""
    if ends[1] <= 0 <= ends[2]:
        return EITHER
    return BETTER if ends[0] * sign > 0 else WORSE
