"""Metrics that belong together: by the number of examples, and by the severity of corruptions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from benchmarks.plots import Axis, Series, line_plot
from benchmarks.report.reading import Part, described, known, summary
from benchmarks.report.series import Chart, Styles, curves

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
    groups = {key: family.get(key, key) for key in part.metrics}
    places = list(dict.fromkeys(groups.values()))
    return sorted(part.metrics, key=lambda key: places.index(groups[key]))


def few_shot(part: Part, styles: Styles) -> list[Chart]:
    """One chart a metric."""
    charts = []
    for name, keys in families(part).items():
        kind, series = described(name), []
        for method, style in styles.items():
            of_keys = [summary(part.methods[method], key) for key in keys.values()]
            mean, error = [one.mean for one in of_keys], [one.error for one in of_keys]
            series.append(Series(method, style, list(keys), mean, error, [0.8] * len(keys)))
        x = Axis("examples of each new class", (-0.3, max(keys) + 0.3), ticks=tuple(keys))
        figure = line_plot(series, x, Axis(kind.name))
        description = f"{part.task}: {kind.name} against the number of examples"
        how = "Means over the seeds; vertical bars are standard errors."
        good = {1: "high and rising.", -1: "low and falling."}.get(kind.direction, "")
        charts.append(Chart(kind.name, figure, description, how, good))
    return charts


STEPS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
START, MEAN, POOLED = "severity ", "severity mean", "severity pooled"
ANCHORS = {-1.0: (178, 84, 26), 0.0: (244, 244, 244), 1.0: (32, 97, 158)}
"""Orange to grey to blue, told apart by every common kind of colour blindness."""
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Heat:
    """A coloured table; cells are text, ground and ink."""

    keys: list[str]
    columns: list[str]
    lines: list[tuple[str, list[tuple[str, str, str]]]]


def severity_keys(part: Part) -> list[str]:
    """Metrics of the heat map, their mean last."""
    keys = [key for key in part.metrics if key.startswith(START) and key != POOLED]
    return sorted(keys, key=lambda key: key == MEAN) if len(keys) > 1 else []


def heat(part: Part) -> Heat | None:
    """Methods by corruption types."""
    keys = severity_keys(part)
    lines = [
        (name, [_cell(summary(rows, key).mean) for key in keys])
        for name, rows in part.methods.items()
    ]
    names = [key.removeprefix(START).replace("_", " ") for key in keys]
    return Heat(keys, names, lines) if keys else None


def _cell(value: float) -> tuple[str, str, str]:
    if not known(value):
        return "n/a", "transparent", "inherit"
    ground = colour(value)
    return f"{value:.2f}".replace("-", "\u2212"), "rgb({},{},{})".format(*ground), ink(ground)


def colour(value: float) -> Colour:
    """Of a rank correlation, -1 to 1."""
    value = min(1.0, max(-1.0, value))
    middle, end = ANCHORS[0.0], ANCHORS[math.copysign(1.0, value)]
    red, green, blue = (round(m + abs(value) * (e - m)) for m, e in zip(middle, end, strict=True))
    return red, green, blue


def ink(ground: Colour) -> str:
    """Black or white, whichever stands out more."""
    linear = [(c / 255) ** 2.2 for c in ground]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if light > 0.18 else "#fff"


def growth(part: Part, styles: Styles) -> list[Chart]:
    """Mean uncertainty over all types, as a share of each method's own range."""
    series = []
    for name, types in curves(part, styles, "severity").items():
        mean = np.nanmean(np.array(list(types.values()), dtype=np.float64), axis=0)
        span = float(np.ptp(mean)) or 1.0
        y = [float(v) for v in (mean - mean[0]) / span]
        series.append(Series(name, styles[name], list(range(len(y))), y, sizes=[0.8] * len(y)))
    if not series:
        return []
    x = Axis("severity (0: the clean images)", (-0.1, 5.1), ticks=STEPS)
    figure = line_plot(series, x, Axis("change in own range"))
    how = "Mean uncertainty minus that of clean images, on each method's own range."
    good = "a steady climb from the first step on."
    description = f"{part.task}: uncertainty by severity"
    return [Chart("Mean over all types", figure, description, how, good)]
