"""Charts of the page, and the methods of those with few curves, always in the same look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from benchmarks.plots import Figure, svg_plot
from benchmarks.report.reading import Part, described, known, summary
from laplace_metric.plots._style import STYLES, Style

Styles = Mapping[str, Style]
PREFERRED = ("laplace", "laplace, tuned", "k-nn distance", "deep ensemble",
             "metric learning, 1/norm")  # fmt: skip
SPARE = (
    "1/norm",
    "laplace, diagonal",
    "mc dropout",
    "mahalanobis",
    "mcinfonce",
    "cross-entropy",
    "infonce, 1/norm",
)
"""Taken where a preferred one was not run."""
GROUPS = ("laplace", "embedding", "detector", "sampled", "amortised", "classifier")


@dataclass(frozen=True)
class Chart:
    """A figure with a title, its description, and sentences that say how to read it."""

    title: str
    figure: Figure
    description: str
    how: str = ""
    good: str = ""

    def svg(self, prefix: str) -> Markup:
        """Inside a page; ``prefix`` of the ids is unique there."""
        return svg_plot(self.figure, prefix, self.description)


@dataclass(frozen=True)
class Block:
    """Charts that answer one question."""

    title: str
    charts: list[Chart]


def curves(part: Part, styles: Styles, kind: str) -> dict[str, Any]:
    """Method -> its curve of a kind, of those that are shown and have it."""
    of_methods = {name: rows[0].get("curves", {}).get(kind) for name, rows in part.methods.items()}
    return {name: of_methods[name] for name in styles if of_methods.get(name)}


def chosen(part: Part, main: str) -> dict[str, Style]:
    """At most six methods: the preferred ones in their own style, the strongest, and spares.

    A preferred method keeps its style in every chart of the page.
    """
    methods = part.methods
    styles = {
        name: style for name, style in zip(PREFERRED, STYLES, strict=False) if name in methods
    }
    extra = [name for name in (strongest(part, main), *SPARE, *methods) if name in methods]
    extra = [name for name in dict.fromkeys(extra) if name not in styles]
    free = [style for style in STYLES if style not in styles.values()]
    return styles | dict(zip(extra, free, strict=False))


def strongest(part: Part, key: str) -> str:
    """The method with the best mean of a metric; empty if none has it."""
    sign = -1 if described(key).direction < 0 else 1
    means = {name: sign * summary(rows, key).mean for name, rows in part.methods.items()}
    means = {name: mean for name, mean in means.items() if known(mean)}
    return max(means, key=lambda name: means[name], default="")


def group_style(group: str) -> Style:
    """One look for each family of methods."""
    return STYLES[GROUPS.index(group) % len(STYLES) if group in GROUPS else -1]
