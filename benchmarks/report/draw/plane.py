"""Methods as numbered points in a plane of cost and quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from benchmarks.report.draw.chart import Chart
from benchmarks.report.draw.frame import Frame
from benchmarks.report.draw.marks import Point, element, marker, picture, trace
from benchmarks.report.draw.scale import around
from laplace_metric.plots import Style

APART = 15.0
PLACES = [
    (radius * x, radius * y)
    for radius in (13.0, 21.0, 30.0, 40.0, 52.0)
    for x, y in ((1, 0), (0, -1), (-1, 0), (0, 1), (0.7, -0.7), (-0.7, -0.7), (0.7, 0.7),
                 (-0.7, 0.7))
]  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A method's cost and quality."""

    name: str
    style: Style
    x: float
    y: float


def plane(title: str, label: str, names: tuple[str, str], methods: Sequence[Method]) -> Chart:
    """A marker and a number for each method, and a key below."""
    frame = frame_of(names, methods, 370.0, 290.0)
    points = frame.points([one.x for one in methods], [one.y for one in methods])
    labels = spread(points, frame)
    dots = [marker(m.style, at, fill_opacity=0.85) for m, at in zip(methods, points, strict=True)]
    numbers = [_number(i + 1, *ends) for i, ends in enumerate(zip(points, labels, strict=True))]
    svg = picture(frame.width, frame.height, label, frame.grid(), *dots, *numbers)
    return Chart(title, svg, [_key(i + 1, one) for i, one in enumerate(methods)], columns=True)


def frame_of(
    names: tuple[str, str], methods: Sequence[Method], width: float, height: float
) -> Frame:
    """Axes that hold all methods, costs on a logarithmic one."""
    x = around(names[0], [one.x for one in methods], log=True, room=0.08)
    y = around(names[1], [one.y for one in methods], room=0.08)
    return Frame(x, y, width=width, height=height)


def spread(points: Sequence[Point], frame: Frame) -> list[Point]:
    """A place near each point, free of points and of the other places."""
    found: list[Point] = []
    for i, (x, y) in enumerate(points):
        taken = [*points[:i], *points[i + 1 :], *found]
        free = [at for dx, dy in PLACES if _free(at := (x + dx, y + dy), taken, frame)]
        found.append(free[0] if free else (x + PLACES[0][0], y))
    return found


def _free(at: Point, taken: Sequence[Point], frame: Frame) -> bool:
    inside = frame.left + 8 < at[0] < frame.width - 8 and 8 < at[1] < frame.height - frame.bottom
    return inside and all(abs(at[0] - x) > APART or abs(at[1] - y) > 12 for x, y in taken)


def _number(number: int, point: Point, place: Point) -> Markup:
    line = trace([point, place], stroke="currentColor", opacity=0.45, stroke_width=0.8)
    given = {"text_anchor": "middle", "class_": "number"}
    return line + element("text", str(number), x=place[0], y=place[1] + 4, **given)


def _key(number: int, one: Method) -> tuple[Markup, str]:
    drawn = marker(one.style, (7, 6))
    given = {"class_": "sample", "viewBox": "0 0 14 12", "width": 14, "height": 12}
    return element("svg", drawn, aria_hidden="true", **given), f"{number} {one.name}"
