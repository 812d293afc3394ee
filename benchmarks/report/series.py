"""The methods that charts with few curves show: always the same, in the same look."""

from __future__ import annotations

from benchmarks.report.reading import Part, described, known, summary
from laplace_metric.plots import STYLES, Style

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


def chosen(part: Part, main: str) -> dict[str, Style]:
    """At most six methods: the preferred ones in their own style, the strongest, and spares.

    A preferred method keeps its style in every chart of the page.
    """
    there = part.methods
    found = {name: style for name, style in zip(PREFERRED, STYLES, strict=False) if name in there}
    extra = [name for name in (strongest(part, main), *SPARE, *there) if name in there]
    extra = [name for name in dict.fromkeys(extra) if name not in found]
    free = [style for style in STYLES if style not in found.values()]
    return found | dict(zip(extra, free, strict=False))


def strongest(part: Part, key: str) -> str:
    """The method with the best mean of a metric; empty if none has it."""
    sign = -1 if described(key).direction < 0 else 1
    means = {name: sign * summary(rows, key).mean for name, rows in part.methods.items()}
    means = {name: mean for name, mean in means.items() if known(mean)}
    return max(means, key=lambda name: means[name], default="")


def group_style(group: str) -> Style:
    """One look for each family of methods."""
    return STYLES[GROUPS.index(group) % len(STYLES) if group in GROUPS else -1]
