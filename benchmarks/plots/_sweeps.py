"""Sweeps of settings: what each does to a number or to two; errors against draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter
from scipy.stats import t

from benchmarks.plots._style import FAINT, SMALL, WIDTH, legend_below, legends_of, panels, titled
from laplace_metric.plots._style import INK, STYLES


class Setting(NamedTuple):
    """One point: recall@1 and ECE, and whether it was chosen (a ring)."""

    recall: float
    ece: float
    chosen: bool


@dataclass(frozen=True)
class TradeOff:
    """Settings of each kind, and the recall@1 of the network without a posterior."""

    title: str
    plain: float
    kinds: Mapping[str, Sequence[Setting]]


def trade_off_plot(panels_of: Sequence[TradeOff]) -> Figure:
    """One panel each: up is worse calibrated, left retrieves less."""
    figure, grid = panels(len(panels_of), WIDTH / len(panels_of), 3.7, sharey=True)
    for axes, one in zip(grid, panels_of, strict=True):
        for style, (kind, points) in zip(STYLES, one.kinds.items(), strict=False):
            axes.plot(
                [p.recall for p in points], [p.ece for p in points], style.marker,
                color=style.colour, ms=5, alpha=0.75, label=kind,
            )  # fmt: skip
        chosen = [p for points in one.kinds.values() for p in points if p.chosen]
        axes.plot(
            [p.recall for p in chosen], [p.ece for p in chosen], "o", ms=10, mfc="none",
            mec=INK, label="chosen, then tested",
        )  # fmt: skip
        axes.axvline(one.plain, label="plain training", **FAINT)
        axes.set(yscale="log", xlabel="recall@1 (right: retrieves better)")
        titled(axes, one.title)
    grid[0].set_yticks((0.01, 0.03, 0.1, 0.3), (".01", ".03", ".1", ".3"))
    grid[0].yaxis.set_minor_locator(NullLocator())
    grid[0].set_ylabel("calibration error, ECE (down: better)")
    found = legends_of(grid)
    legend_below(figure, len(found), SMALL, handles=list(found.values()), labels=list(found))
    return figure


def draws_plot(errors: Mapping[int, Sequence[float]], printed: float) -> Figure:
    """Error of the certainty against draws: a dot a seed, means with their 95 % intervals.

    Parameters
    ----------
    errors : mapping of draws to RMSE of each seed
        At least one seed each; of a single one, there is no interval.
    printed : float
        What the paper has.
    """
    figure, (axes,) = panels(1, 6.0, 3.6)
    style, draws = STYLES[0], sorted(errors)
    for n in draws:
        axes.plot([n] * len(errors[n]), errors[n], style.marker, color=style.colour, ms=4,
                  alpha=0.5)  # fmt: skip
    means = [float(np.mean(errors[n])) for n in draws]
    half = [_half(errors[n]) for n in draws]
    lows = [min(h, 0.9 * mean) for h, mean in zip(half, means, strict=True)]  # a logarithmic axis
    axes.errorbar(draws, means, [lows, half], ls=style.line, color=style.colour, lw=1.4, capsize=3,
                  label="mean of the seeds (dots), 95 % interval")  # fmt: skip
    axes.axhline(printed, label=f"printed, 512 draws: {printed:g}", **FAINT)
    axes.set(xscale="log", yscale="log", xlabel="draws while the certainty learns")
    axes.set_ylabel("RMSE of kappa (true: 16 to 32)")
    axes.set_xticks(draws, [str(n) for n in draws])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=INK)
    return figure


@dataclass(frozen=True)
class Sweep:
    """One panel: a number of each seed, at every setting, of a few series.

    Parameters
    ----------
    title, x, y : str
        Of the panel and its axes.
    settings : sequence of str
        From left to right.
    series : mapping of name to one sequence of seeds a setting
    printed : mapping of name to one number a setting
        What the paper has, NaN where it has none.
    limits : pair of float
        Of the y axis; intervals end there.
    joined : bool
        Whether the settings are steps of one number, joined by a line.
    """

    title: str
    x: str
    y: str
    settings: Sequence[str]
    series: Mapping[str, Sequence[Sequence[float]]]
    printed: Mapping[str, Sequence[float]] = field(default_factory=dict)
    limits: tuple[float, float] = (-1.0, 1.0)
    joined: bool = True


def sweep_plot(panels_of: Sequence[Sweep]) -> Figure:
    """Means of the seeds with their 95 % t intervals, a panel each; one legend."""
    figure, grid = panels(len(panels_of), WIDTH / len(panels_of), 3.3)
    names = dict.fromkeys(name for one in panels_of for name in one.series)
    styles = dict(zip(names, STYLES, strict=False))
    for axes, one in zip(grid, panels_of, strict=True):
        for i, (name, values) in enumerate(one.series.items()):
            style = styles[name]
            places = np.arange(len(values)) + 0.06 * (i - (len(one.series) - 1) / 2)
            means = np.array([np.mean(of) for of in values])
            half = np.array([_half(of) for of in values])
            low, high = (limit - means for limit in one.limits)
            axes.errorbar(
                places, means, [np.minimum(half, -low), np.minimum(half, high)],
                ls=style.line if one.joined else "none", marker=style.marker, color=style.colour,
                ms=4, lw=1.4, capsize=3, label=name,
            )  # fmt: skip
        for name, numbers in one.printed.items():
            axes.plot(numbers, "x", color=INK, alpha=0.7, ms=6, label=name)
        axes.axhline(0, **FAINT)
        room = 0.04 * (one.limits[1] - one.limits[0])
        axes.set(xlim=(-0.4, len(one.settings) - 0.6),
                 ylim=(one.limits[0] - room, one.limits[1] + room))  # fmt: skip
        axes.set_xlabel(one.x, fontsize=SMALL + 1)
        axes.set_ylabel(one.y, fontsize=SMALL + 1)
        axes.set_xticks(range(len(one.settings)), one.settings)
        titled(axes, one.title)
    found = legends_of(grid)
    legend_below(figure, min(3, len(found)), SMALL, handles=list(found.values()),
                 labels=list(found))  # fmt: skip
    return figure


Pair = tuple[Sequence[float], Sequence[float]]
"""Two numbers of every seed."""


def settings_plot(
    methods: Mapping[str, Sequence[Pair]], x: str, y: str, reference: tuple[str, Pair]
) -> Figure:
    """A panel a method, a cross a setting: means of two numbers with their standard errors.

    ``reference`` (a name and its numbers) is drawn in every panel.
    """
    figure, grid = panels(len(methods), WIDTH / 3, 2.5, 3, sharex=True, sharey=True)
    for axes, (name, pairs) in zip(grid, methods.items(), strict=True):
        for style, own, label in (
            (STYLES[0], pairs, "one setting, mean ± standard error of the seeds"),
            (STYLES[1], [reference[1]], reference[0]),
        ):
            (a, across), (b, up) = (
                np.array([_mean_and_error(pair[k]) for pair in own]).T for k in (0, 1)
            )
            axes.errorbar(a, b, up, across, ls="none", marker=style.marker, color=style.colour,
                          ms=4, lw=1.2, label=label)  # fmt: skip
        axes.axhline(0.5, **FAINT)
        titled(axes, name)
    for axes in grid[-3:]:
        axes.set_xlabel(x, fontsize=SMALL + 1)
    for axes in grid[::3]:
        axes.set_ylabel(y, fontsize=SMALL + 1)
    found = legends_of(grid)
    legend_below(figure, 2, SMALL, handles=list(found.values()), labels=list(found))
    return figure


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)


def _half(values: Sequence[float]) -> float:
    """Half the t interval of a mean; 0 where there is none."""
    n = len(values)
    return float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else 0.0
