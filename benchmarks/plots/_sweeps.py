"""Two numbers of every line of a comparison: what retrieves better, what is better calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.plots._style import FAINT, SMALL, WIDTH, legend_below, legends_of, panels, titled
from laplace_metric.plots._style import STYLES


class Line(NamedTuple):
    """One line of the table: AUROC of foreign images and ECE, each a mean and a standard error."""

    detection: tuple[float, float]
    ece: tuple[float, float]


@dataclass(frozen=True)
class TradeOff:
    """Lines of each kind, and the AUROC of the network without a posterior."""

    title: str
    plain: float
    kinds: Mapping[str, Sequence[Line]]


def trade_off_plot(panels_of: Sequence[TradeOff]) -> Figure:
    """One panel each: up is worse calibrated, left detects less."""
    figure, grid = panels(len(panels_of), WIDTH / len(panels_of), 3.7, sharey=True)
    for axes, one in zip(grid, panels_of, strict=True):
        for style, (kind, points) in zip(STYLES, one.kinds.items(), strict=False):
            x, y = ([p[i] for p in points] for i in (0, 1))
            axes.errorbar(
                [m for m, _ in x], [m for m, _ in y], xerr=[e for _, e in x],
                yerr=[e for _, e in y], fmt=style.marker, color=style.colour, ms=5, alpha=0.75,
                label=kind,
            )  # fmt: skip
        axes.axvline(one.plain, label="plain training", **FAINT)
        axes.set(yscale="log", xlim=(0, 1))
        axes.set_xlabel("AUROC of foreign images (right: better; .5: guessing)")
        titled(axes, one.title)
    grid[0].set_yticks((0.01, 0.03, 0.1, 0.3), (".01", ".03", ".1", ".3"))
    grid[0].yaxis.set_minor_locator(NullLocator())
    grid[0].set_ylabel("calibration error, ECE (down: better)")
    found = legends_of(grid)
    legend_below(figure, len(found), SMALL, handles=list(found.values()), labels=list(found))
    return figure
