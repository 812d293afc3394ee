"""Metrics against the number of examples of each new class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from benchmarks.report.draw.chart import Chart
from benchmarks.report.draw.frame import Frame
from benchmarks.report.draw.lines import Series, line_chart
from benchmarks.report.draw.scale import Axis, around
from benchmarks.report.reading import Part, described, known, summary
from laplace_metric.plots import Style

KEY = re.compile(r"(.+) (\d+) shots?")


def families(part: Part) -> dict[str, dict[int, str]]:
    """Metric -> shots -> the key that has both."""
    found: dict[str, dict[int, str]] = {}
    for key in part.metrics:
        if match := KEY.fullmatch(key):
            found.setdefault(match[1], {})[int(match[2])] = key
    return {name: dict(sorted(keys.items())) for name, keys in found.items() if len(keys) > 1}


def ordered(part: Part) -> list[str]:
    """The metrics of a part, those of a family side by side."""
    family = {key: name for name, keys in families(part).items() for key in keys.values()}
    of = {key: family.get(key, key) for key in part.metrics}
    places = list(dict.fromkeys(of.values()))
    return sorted(part.metrics, key=lambda key: places.index(of[key]))


def charts(part: Part, styles: Mapping[str, Style]) -> list[Chart]:
    """One a metric."""
    return [_chart(part, styles, name, keys) for name, keys in families(part).items()]


def _chart(part: Part, styles: Mapping[str, Style], name: str, keys: dict[int, str]) -> Chart:
    kind = described(name)
    lines = []
    for method, style in styles.items():
        found = [summary(part.methods[method], key) for key in keys.values()]
        mean, error = [one.mean for one in found], [one.error for one in found]
        lines.append(Series(method, style, list(keys), mean, error, [0.8] * len(keys)))
    ends = [
        value
        for one in lines
        for y, e in zip(one.y, one.errors, strict=True)
        for value in ((y - e, y + e) if known(e) else (y,))
    ]
    ticks = tuple(float(n) for n in keys)
    x = Axis("examples of each new class", -0.3, max(keys) + 0.3, marks=ticks)
    frame = Frame(x, around(kind.name, ends))
    chart = line_chart(kind.name, f"{part.task}: {kind.name} against shots", frame, lines)
    way = {1: "high and rising", -1: "low and falling"}.get(kind.direction, "")
    how = "Means over the seeds; vertical bars are standard errors."
    return replace(chart, how=how, good=f"{way}." if way else "")
