"""Curves of a few methods in one chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from benchmarks.report.draw.chart import Chart
from benchmarks.report.draw.frame import Frame
from benchmarks.report.draw.marks import DOTTED, marker, picture, sample, styled, trace
from laplace_metric.plots import Style


@dataclass(frozen=True)
class Series:
    """A curve; without a style it is there for orientation.

    Parameters
    ----------
    errors : sequence
        Half lengths of vertical bars.
    sizes : sequence
        Draws markers of these areas (1: the usual).
    dash : str
        Of a curve without a style; empty is solid.
    """

    name: str
    style: Style | None
    x: Sequence[float]
    y: Sequence[float]
    errors: Sequence[float] = field(default=())
    sizes: Sequence[float] = field(default=())
    dash: str = DOTTED


def line_chart(title: str, label: str, frame: Frame, series: Sequence[Series]) -> Chart:
    """Curves over a grid, with a legend below."""
    drawn = [_drawn(one, frame) for one in series]
    legend = [(sample(one.style, bool(one.sizes), one.dash), one.name) for one in series]
    return Chart(title, picture(frame.width, frame.height, label, frame.grid(), *drawn), legend)


def _drawn(one: Series, frame: Frame) -> Markup:
    kept = [i for i, pair in enumerate(zip(one.x, one.y, strict=True)) if _finite(*pair)]
    points = frame.points([one.x[i] for i in kept], [one.y[i] for i in kept])
    bars = [_bar(one, frame, i) for i in kept if one.errors]
    dots = [
        marker(one.style, at, math.sqrt(one.sizes[i]), fill_opacity=0.6, stroke=one.style.colour)
        for i, at in zip(kept, points, strict=True)
        if one.sizes and one.style
    ]
    joined = [at for i, at in zip(kept, points, strict=True) if not one.sizes or one.sizes[i] > 0.1]
    return Markup("").join((styled(joined, one.style, one.dash), *bars, *dots))


def _bar(one: Series, frame: Frame, i: int) -> Markup:
    ends = (one.y[i] - one.errors[i], one.y[i] + one.errors[i])
    if not _finite(*ends) or one.style is None:
        return Markup("")
    return trace([frame.at(one.x[i], y) for y in ends], stroke=one.style.colour, stroke_width=1.5)


def _finite(*values: float | None) -> bool:
    return all(value is not None and math.isfinite(value) for value in values)
