"""Guards over many random splits: how much each answers, and how much of that is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.plots._style import SMALL, legend_below, panels, titled
from laplace_metric.plots._style import INK, STYLES

Point = tuple[float, float]


def forty_plot(
    guards: Mapping[str, Sequence[Point]], plain: Mapping[str, Sequence[Point]], target: float
) -> Figure:
    """Draw one panel a set of images: a dot a guard, and a dot a search that always answers.

    Parameters
    ----------
    guards, plain : name of a set -> (share answered, share of the answers that is right)
    target : float
        Precision that the guards guarantee.
    """
    figure, axes = panels(len(guards), 4.4, 2.9, sharey=True)
    for panel, (name, points) in zip(axes, guards.items(), strict=True):
        kept = sum(right >= target for _, right in points)
        for look, some, words in (
            (STYLES[1], plain[name], "every query answered"),
            (STYLES[0], points, "guard"),
        ):
            x, y = zip(*((100 * a, 100 * r) for a, r in some), strict=True)
            panel.plot(x, y, ls="", marker=look.marker, color=look.colour, ms=5, alpha=0.6,
                       label=words if panel is axes[0] else None)  # fmt: skip
        panel.axhline(100 * target, color=INK, lw=1.2, ls="--",
                      label="guaranteed" if panel is axes[0] else None)  # fmt: skip
        panel.set_xlim(0, 104)
        titled(panel, f"{name}: {kept} of {len(points)} guards keep it")
        panel.set_xlabel("queries answered, %", fontsize=SMALL + 1)
    axes[0].set_ylabel("right, of the answers, %", fontsize=SMALL + 1)
    legend_below(figure, 3, SMALL)
    return figure
