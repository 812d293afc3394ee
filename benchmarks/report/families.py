"""The metrics of severities of corruptions, which belong together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.plots import Axis, Series, diverging, letters_on, line_plot
from benchmarks.report.reading import Part, known, summary
from benchmarks.report.series import Chart, Styles, curves

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
