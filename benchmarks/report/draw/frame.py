"""The frame of a chart: grid, ticks, names of the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from benchmarks.report.draw.marks import Point, element, trace
from benchmarks.report.draw.scale import Axis

FAINT = {"stroke": "currentColor", "opacity": 0.15}


@dataclass(frozen=True)
class Frame:
    """Two axes in a box of pixels."""

    x: Axis
    y: Axis
    width: float = 360.0
    height: float = 270.0
    left: float = 60.0
    right: float = 20.0
    top: float = 10.0
    bottom: float = 42.0

    def at(self, x: float, y: float) -> Point:
        """The pixel of a point."""
        across = self.width - self.left - self.right
        along = self.height - self.top - self.bottom
        return (
            self.left + across * self.x.share(x),
            self.height - self.bottom - along * self.y.share(y),
        )

    def points(self, xs: Sequence[float], ys: Sequence[float]) -> list[Point]:
        """The pixels of many."""
        return [self.at(x, y) for x, y in zip(xs, ys, strict=True)]

    def grid(self) -> Markup:
        """Lines, ticks and names."""
        return Markup("").join((*self._along_x(), *self._along_y()))

    def _along_x(self) -> list[Markup]:
        floor, ceiling = self.height - self.bottom, self.top
        marks = []
        for value in self.x.ticks():
            x, _ = self.at(value, self.y.low)
            marks.append(trace([(x, floor), (x, ceiling)], **FAINT))
            marks.append(_text(self.x.text(value), x, floor + 15, "middle"))
        middle = (self.left + self.width - self.right) / 2
        return [*marks, _text(self.x.label, middle, self.height - 8, "middle")]

    def _along_y(self) -> list[Markup]:
        marks = []
        for value in self.y.ticks():
            _, y = self.at(self.x.low, value)
            marks.append(trace([(self.left, y), (self.width - self.right, y)], **FAINT))
            marks.append(_text(self.y.text(value), self.left - 6, y + 4, "end"))
        middle = (self.top + self.height - self.bottom) / 2
        turn = f"rotate(-90 14 {middle:g})"
        return [*marks, element("text", self.y.label, x=14, y=middle, transform=turn,
                                text_anchor="middle")]  # fmt: skip


def _text(words: str, x: float, y: float, anchor: str) -> Markup:
    return element("text", words, x=x, y=y, text_anchor=anchor)
