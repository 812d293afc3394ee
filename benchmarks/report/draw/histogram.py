"""Where a method's uncertainties fall: queries and strange inputs."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from benchmarks.report.draw.chart import Chart
from benchmarks.report.draw.frame import Frame
from benchmarks.report.draw.marks import Point, dashes, picture, sample, trace
from benchmarks.report.draw.scale import Axis
from laplace_metric.plots import STYLES, Style


def histogram(title: str, label: str, found: dict[str, Any]) -> Chart:
    """Steps of the shares of each set, in common bins."""
    edges, shares = found["edges"], found["shares"]
    top = max(max(share) for share in shares.values()) or 1.0
    x = Axis("uncertainty", edges[0], edges[-1], log=found["logarithmic"])
    frame = Frame(x, Axis("share of inputs", 0.0, 1.05 * top, percent=True))
    styles = dict(zip(shares, STYLES, strict=False))
    drawn = [_steps(frame, edges, shares[name], style) for name, style in styles.items()]
    svg = picture(frame.width, frame.height, label, frame.grid(), *drawn)
    return Chart(title, svg, [(sample(style), name) for name, style in styles.items()])


def _steps(frame: Frame, edges: list[float], share: list[float], style: Style) -> Markup:
    points: list[Point] = [frame.at(edges[0], 0.0)]
    for low, high, value in zip(edges, edges[1:], share, strict=False):
        points += [frame.at(low, value), frame.at(high, value)]
    points.append(frame.at(edges[-1], 0.0))
    area = trace(points, fill=style.colour, fill_opacity="0.18")
    line = trace(points, stroke=style.colour, stroke_width=1.6, stroke_dasharray=dashes(style))
    return area + line
