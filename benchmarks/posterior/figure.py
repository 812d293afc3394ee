"""The ablation as a figure: what is found over the share of the posterior in a vector."""

from __future__ import annotations

from typing import Any

from benchmarks.plots import Axis, Figure, Series, headed, lines_plot
from benchmarks.posterior.tables import over_networks
from laplace_metric.plots._style import STYLES

PANELS = {"first": "nearest item right", "label": "label right (10 neighbours)"}
LOOKS = {"h whitened": 1, "noise": 2, "posterior": 0}
NAMES = {
    "h whitened": "h, whitened within classes",
    "noise": "noise N(θ, s²I), no data",
    "posterior": "posterior",
}


def share_figure(record: dict[str, Any]) -> Figure:
    """Return means over the confirmation networks, or over all there are."""
    rows = [row for row in record["rows"] if row["part"] == "confirmation"] or record["rows"]
    shares = record["shares"]
    panels = []
    for measure, label in PANELS.items():
        series = []
        for name, look in LOOKS.items():
            found = zip(*(row["by_share"][name][measure] for row in rows), strict=True)
            values = [over_networks(rows, at)[0] for at in found]
            series.append(Series(NAMES[name], STYLES[look], shares, values))
        for name, line in (("mean z", ":"), ("h", "--")):
            level = over_networks(rows, [row["chosen"][name][measure] for row in rows])[0]
            told = "mean embedding z alone" if name == "mean z" else "head input h alone"
            series.append(Series(told, None, shares, [level] * len(shares), line=line))
        panels.append((series, Axis(label)))
    x = Axis("share of the squared length that is not the mean's", percent=True)
    figure = lines_plot(panels, x)
    networks, seeds = ({row[key] for row in rows} for key in ("network", "seed"))
    note = (
        f"Means of {len(networks)} networks that were not used to develop it, {len(seeds)} seeds "
        f"of each, {len(rows)} collections of 2,000 items. A vector is [z ; part], at equal shares."
    )
    return headed(figure, "What a posterior over the head adds to nearest neighbours", note)
