"""Sweeps of settings: what a better calibration costs in retrieval; errors against draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from benchmarks.plots._style import SMALL, legend_below, panels
from laplace_metric.plots import INK, STYLES


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
    figure, grid = panels(len(panels_of), 6.2, 4.6)
    for axes, one in zip(grid, panels_of, strict=True):
        for style, (kind, points) in zip(STYLES, one.kinds.items(), strict=False):
            axes.plot(
                [p.recall for p in points], [p.ece for p in points], style.marker,
                color=style.colour, ms=6, alpha=0.75, label=kind,
            )  # fmt: skip
        chosen = [p for points in one.kinds.values() for p in points if p.chosen]
        axes.plot(
            [p.recall for p in chosen], [p.ece for p in chosen], "o", ms=12, mfc="none",
            mec=INK, label="asked of test images",
        )  # fmt: skip
        axes.axvline(one.plain, color=INK, lw=1, ls=":", label="recall@1 of plain training")
        axes.set(yscale="log", xlabel="recall@1", title=one.title)
        axes.set_yticks((0.01, 0.03, 0.1, 0.3), (".01", ".03", ".1", ".3"))
        axes.yaxis.set_minor_locator(NullLocator())
    grid[0].set_ylabel("ECE of the vote over draws (lower is better)")
    handles, names = grid[0].get_legend_handles_labels()
    legend_below(figure, len(handles), handles=handles, labels=names)
    return figure


def draws_plot(draws: Sequence[int], errors: Sequence[Sequence[float]], printed: float) -> Figure:
    """Error of the certainty against draws: one dot a seed, a line through the means."""
    figure, (axes,) = panels(1, 5.2, 3.6)
    style = STYLES[0]
    for n, values in zip(draws, errors, strict=True):
        axes.plot([n] * len(values), values, style.marker, color=style.colour, ms=5, alpha=0.5)
    means = [sum(values) / len(values) for values in errors]
    axes.plot(draws, means, style.line, color=style.colour, label="mean of the seeds (dots)")
    axes.axhline(printed, color=INK, lw=1, ls=":", label=f"printed, 512 draws: {printed:g}")
    axes.set(xscale="log", yscale="log", xlabel="draws while the certainty learns")
    axes.set_ylabel("RMSE of kappa (true: 16 to 32)")
    axes.set_xticks(draws, [str(n) for n in draws])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.legend(frameon=False, fontsize=SMALL + 1, labelcolor=INK)
    return figure
