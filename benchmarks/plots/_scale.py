"""How it scales: time, memory, galleries, and shares of what the machine can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.plots._style import FAINT, SMALL, WIDTH, panels, titled
from benchmarks.timing import slope
from laplace_metric.plots._style import INK, STYLES

Row = dict[str, Any]
Record = dict[str, Any]
Bars = dict[str, float]
STEPS = ("fit", "embed", "sample")
NAMES = {"diag": "diagonal", "kron": "Kronecker"}


def scale_plot(record: Record) -> Figure:
    """One panel for each question that the record answers."""
    draw: dict[str, Callable[[Axes, Record], None]] = {
        "time": _time, "memory": _memory, "gallery": _gallery, "share": _share,
    }  # fmt: skip
    needs = {"time": ("points", "margin"), "memory": ("points",), "gallery": ("gallery",),
             "share": ("margin", "device cpu", "device cuda", "processes")}  # fmt: skip
    shown = [name for name in draw if any(part in record for part in needs[name])]
    figure, grid = panels(len(shown), WIDTH / 2, 3.3, min(2, len(shown)))
    for axes, name in zip(grid, shown, strict=True):
        draw[name](axes, record)
    return figure


def fit_rows(record: Record) -> dict[str, list[Row]]:
    """Rows of each line of the first panel."""
    rows = record.get("points", {}).get("rows", [])
    margin = record.get("margin", {})
    lines = {name: [r for r in rows if r["structure"] == s] for s, name in NAMES.items()}
    lines["diagonal, exact margin"] = margin.get("exact", [])
    return {name: of for name, of in lines.items() if of}


def _time(axes: Axes, record: Record) -> None:
    for style, (name, rows) in zip(STYLES, fit_rows(record).items(), strict=False):
        n, wall = ([row[key] for row in rows] for key in ("n", "wall_seconds"))
        fitted = slope(n, wall)
        label = name if fitted is None else f"{name}: time ~ N^{fitted:.2f}"
        axes.plot(n, wall, color=style.colour, ls=style.line, marker=style.marker, ms=5,
                  label=label)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="points N")
    titled(axes, "How long does a fit take?")
    axes.set_ylabel("seconds")
    _dress(axes)


def _memory(axes: Axes, record: Record) -> None:
    lines = {"peak": "peak_mb", "peak without mapped files": "own_peak_mb",
             "before the fit, after imports": "base_mb",
             "size of the features, on disk": "features_mb"}  # fmt: skip
    rows = [row for row in record["points"]["rows"] if row["structure"] == "diag"]
    for style, (name, key) in zip(STYLES, lines.items(), strict=False):
        axes.plot([row["n"] for row in rows], [row[key] for row in rows], color=style.colour,
                  ls=style.line, marker=style.marker, ms=5, label=name)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="points N")
    axes.set_ylabel("MB")
    titled(axes, "How much memory does the diagonal fit take?")
    _dress(axes)


def _dress(axes: Axes) -> None:
    """Plain numbers on both axes, and a legend."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=INK)


def _gallery(axes: Axes, record: Record) -> None:
    part = record["gallery"]
    known = {True: ", embeddings given", False: ""}
    space = {"raw": "not normalised", "sphere": "on the sphere"}
    bars = {
        f"{NAMES[r['structure']]}, {space[r['geometry']]}{known[r['embeddings_known']]}": r["ratio"]
        for r in part["rows"]
    }
    _bars(axes, bars, "{:.2f}", part["target"], f"aim: {part['target']:g}")
    n = max(row["n"] for row in part["rows"])
    titled(axes, f"What do uncertainties of {n:,} items cost?")
    axes.set_xlabel("time, in products of their features with the head")


def _share(axes: Axes, record: Record) -> None:
    bars: Bars = {}
    for row in record.get("margin", {}).get("exact", [])[-1:]:
        bars["fit with an exact margin"] = row["share"]
    for name in ("device cpu", "device cuda"):
        which = name.removeprefix("device ").upper()
        for row in record.get(name, {}).get("rows", []):
            start = f"{which}, {NAMES[row['structure']]}"
            bars |= {f"{start}: {w}": row[w]["share_of_float32_product"] for w in STEPS}
    if "processes" in record:
        bars["two processes, beside twice one"] = record["processes"]["times_as_fast"] / 2
    percent = {name: 100 * value for name, value in bars.items()}
    _bars(axes, percent, "{:.0f} %", 100, "as fast as that")
    titled(axes, "How near to the speed of the machine?")
    axes.set_xlabel("operations a second, % of a plain float32 product's")


def _bars(
    axes: Axes, values: Mapping[str, float], text: str, level: float, level_name: str
) -> None:
    """One under the other, each with its number, and a level to compare them with."""
    places: Sequence[int] = range(len(values))
    drawn = axes.barh(places, list(values.values()), color=STYLES[0].colour, height=0.42)
    axes.bar_label(drawn, [text.format(v) for v in values.values()], fontsize=SMALL, padding=3,
                   color=INK)  # fmt: skip
    axes.axvline(level, label=level_name, **FAINT)
    for place, name in zip(places, values, strict=True):
        axes.text(0, place - 0.47, name, fontsize=SMALL, va="center", color=INK)
    axes.set(yticks=(), ylim=(len(values) - 0.6, -0.85))
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.2)
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=INK, loc="lower right")


def _short(value: float) -> str:
    """A thousand is 1k, a million 1M."""
    for unit, sign in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{sign}"
    return f"{value:g}"
