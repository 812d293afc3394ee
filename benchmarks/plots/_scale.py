"""How it scales: time, memory, galleries, and shares of what the machine can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.plots._style import SMALL, panels
from benchmarks.timing import slope
from laplace_metric.plots import STYLES

Row = dict[str, Any]
Record = dict[str, Any]
Bars = dict[str, float]
STEPS = ("fit", "embed", "sample")


def scale_plot(record: Record) -> Figure:
    """One panel for each question that the record answers."""
    draw: dict[str, Callable[[Axes, Record], None]] = {
        "time": _time, "memory": _memory, "gallery": _gallery, "share": _share,
    }  # fmt: skip
    needs = {"time": ("points", "margin"), "memory": ("points",), "gallery": ("gallery",),
             "share": ("margin", "device cpu", "device cuda", "processes")}  # fmt: skip
    shown = [name for name in draw if any(part in record for part in needs[name])]
    figure, grid = panels(len(shown), 4.1, 3.9)
    for axes, name in zip(grid, shown, strict=True):
        draw[name](axes, record)
    return figure


def fit_rows(record: Record) -> dict[str, list[Row]]:
    """Rows of each line of the first panel."""
    rows = record.get("points", {}).get("rows", [])
    margin = record.get("margin", {})
    lines = {f"fit, {s}": [r for r in rows if r["structure"] == s] for s in ("diag", "kron")}
    lines["exact margin"] = margin.get("exact", [])
    return {name: of for name, of in lines.items() if of}


def _time(axes: Axes, record: Record) -> None:
    for style, (name, rows) in zip(STYLES, fit_rows(record).items(), strict=False):
        n, wall = ([row[key] for row in rows] for key in ("n", "wall_seconds"))
        fitted = slope(n, wall)
        label = name if fitted is None else f"{name}: slope {fitted:.2f}"
        axes.plot(n, wall, color=style.colour, ls=style.line, marker=style.marker, ms=5,
                  label=label)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="points N", title="time to fit")
    axes.set_ylabel("seconds of wall time")
    axes.legend(frameon=False, fontsize=SMALL)


def _memory(axes: Axes, record: Record) -> None:
    lines = {"peak": "peak_mb", "without mapped files": "own_peak_mb", "after imports": "base_mb",
             "size of the features": "features_mb"}  # fmt: skip
    rows = [row for row in record["points"]["rows"] if row["structure"] == "diag"]
    for style, (name, key) in zip(STYLES, lines.items(), strict=False):
        axes.plot([row["n"] for row in rows], [row[key] for row in rows], color=style.colour,
                  ls=style.line, marker=style.marker, ms=5, label=name)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="points N", title="memory of the diagonal fit")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("MB")
    axes.legend(frameon=False, fontsize=SMALL)


def _gallery(axes: Axes, record: Record) -> None:
    part = record["gallery"]
    known = {True: ", z known", False: ""}
    bars = {
        f"{r['structure']}, {r['geometry']}{known[r['embeddings_known']]}": r["ratio"]
        for r in part["rows"]
    }
    _bars(axes, bars, "{:.2f} x")
    axes.axvline(part["target"], color="#666", lw=1, ls=":")
    axes.set_title("uncertainties of a gallery")
    axes.set_xlabel(f"times one product (dotted: {part['target']:g})")


def _share(axes: Axes, record: Record) -> None:
    bars: Bars = {}
    for row in record.get("margin", {}).get("exact", [])[-1:]:
        bars["exact margin"] = row["share"]
    for name in ("device cpu", "device cuda"):
        for row in record.get(name, {}).get("rows", []):
            which = f"{name.removeprefix('device ')} {row['structure']}"
            bars |= {f"{which}, {w}": row[w]["share_of_float32_product"] for w in STEPS}
    if "processes" in record:
        bars["2 processes, of twice the speed"] = record["processes"]["times_as_fast"] / 2
    _bars(axes, {name: 100 * value for name, value in bars.items()}, "{:.0f} %")
    axes.set(title="of what the machine can do", xlabel="% of its float32 product")


def _bars(axes: Axes, values: Mapping[str, float], text: str) -> None:
    """One under the other, each with its number."""
    places: Sequence[int] = range(len(values))
    drawn = axes.barh(places, list(values.values()), color=STYLES[0].colour, height=0.65)
    axes.bar_label(drawn, [text.format(v) for v in values.values()], fontsize=SMALL, padding=3)
    axes.set_yticks(places, list(values), fontsize=SMALL)
    axes.invert_yaxis()
    axes.margins(x=0.2)
