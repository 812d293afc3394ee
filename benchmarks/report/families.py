"""Metrics that belong together: by the number of examples, and by the severity of corruptions."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from benchmarks.plots import Axis, Series, diverging, letters_on, line_plot
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
    ground = diverging(value)
    colour = "rgb({},{},{})".format(*ground)
    return f"{value:.2f}".replace("-", "\u2212"), colour, letters_on(ground)


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
