"""Metrics against the number of examples of each new class."""

from __future__ import annotations

import re

from benchmarks.plots import Axis, Series, line_plot
from benchmarks.report.reading import Part, described, summary
from benchmarks.report.series import Chart, Styles

KEY = re.compile(r"(.+) (\d+) shots?")


def families(part: Part) -> dict[str, dict[int, str]]:
    """Metric -> shots -> the key that has both."""
    of_metric: dict[str, dict[int, str]] = {}
    for key in part.metrics:
        if match := KEY.fullmatch(key):
            of_metric.setdefault(match[1], {})[int(match[2])] = key
    return {name: dict(sorted(keys.items())) for name, keys in of_metric.items() if len(keys) > 1}


def ordered(part: Part) -> list[str]:
    """The metrics of a part, those of a family side by side."""
    family = {key: name for name, keys in families(part).items() for key in keys.values()}
    of = {key: family.get(key, key) for key in part.metrics}
    places = list(dict.fromkeys(of.values()))
    return sorted(part.metrics, key=lambda key: places.index(of[key]))


def charts(part: Part, styles: Styles) -> list[Chart]:
    """One a metric."""
    return [_chart(part, styles, name, keys) for name, keys in families(part).items()]


def _chart(part: Part, styles: Styles, name: str, keys: dict[int, str]) -> Chart:
    kind, series = described(name), []
    for method, style in styles.items():
        of_keys = [summary(part.methods[method], key) for key in keys.values()]
        mean, error = [one.mean for one in of_keys], [one.error for one in of_keys]
        series.append(Series(method, style, list(keys), mean, error, [0.8] * len(keys)))
    x = Axis("examples of each new class", (-0.3, max(keys) + 0.3), ticks=tuple(keys))
    way = {1: "high and rising.", -1: "low and falling."}.get(kind.direction, "")
    how = "Means over the seeds; vertical bars are standard errors."
    description = f"{part.task}: {kind.name} against the number of examples"
    return Chart(kind.name, line_plot(series, x, Axis(kind.name)), description, how, way)
