"""PNG figures of the README from collected JSON: ``python -m benchmarks.report.figures FOLDER``."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.report.cost_figure import SMALL, cost, quiet
from benchmarks.report.reading import Part, Record, described, known, parts, summary
from benchmarks.report.severity import colour, heat
from laplace_metric.plots import STYLES

FIGURES = Path(__file__).parents[1] / "figures"
DPI, COLOURS = 110, 128


def dots(record: Record) -> Figure:
    """R-AUROC and mean AUROC of the strange sets of each method, one panel a task."""
    shown = parts(record)
    height = 0.24 * max(len(part.methods) for part in shown) + 1.3
    figure = Figure(figsize=(3.3 * len(shown) + 1.6, height), layout="constrained")
    for axes, part in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        _dots(axes, part)
    handles = max((axes.get_legend_handles_labels()[0] for axes in figure.axes), key=len)
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _dots(axes: Axes, part: Part) -> None:
    keys = ["r_auroc", *(key for key in part.metrics if key.startswith("auroc "))]
    names = list(part.methods)
    for i, (style, key) in enumerate(zip(STYLES, keys, strict=False)):
        found = [summary(rows, key) for rows in part.methods.values()]
        axes.errorbar(
            [one.mean for one in found],
            [place + 0.16 * (i - (len(keys) - 1) / 2) for place in range(len(names))],
            xerr=[one.error if known(one.error) else 0.0 for one in found],
            fmt=style.marker, color=style.colour, ms=4.5, lw=1.2, label=_name(i, key),
        )  # fmt: skip
    axes.axvline(0.5, color="#666", lw=1, ls=":")
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    sets = [f"{i}: {key.removeprefix('auroc ')}" for i, key in enumerate(keys) if i]
    axes.set(title=part.task, ylim=(len(names) - 0.5, -0.5))
    axes.set_xlabel("strange sets " + ", ".join(sets) if sets else "", fontsize=SMALL)
    quiet(axes)


def _name(place: int, key: str) -> str:
    """Strange sets differ between tasks: the legend numbers them."""
    return described(key).name if place == 0 else f"AUROC, strange set {place}"


def corruption(record: Record) -> Figure:
    """Rank correlation with severity, methods by types, of the first task."""
    (part, *_) = parts(record)
    found = heat(part)
    assert found, "no severities"
    wide, high = len(found.columns), len(found.lines)
    figure = Figure(figsize=(0.47 * wide + 2.2, 0.27 * high + 1.5), layout="constrained")
    axes = figure.add_subplot()
    values = [[summary(rows, key).mean for key in found.keys] for rows in part.methods.values()]
    white = (255, 255, 255)
    axes.imshow([[colour(v) if known(v) else white for v in line] for line in values],
                aspect="auto")  # fmt: skip
    for y, (_, cells) in enumerate(found.lines):
        for x, (text, _, ink) in enumerate(cells):
            ink = ink if ink.startswith("#") else "#000"
            axes.text(x, y, text, color=ink, fontsize=7, ha="center", va="center")
    axes.set_xticks(range(wide), found.columns, rotation=45, ha="right", fontsize=SMALL)
    axes.set_yticks(range(high), [name for name, _ in found.lines], fontsize=SMALL)
    axes.set_title("rank correlation of uncertainty with severity", fontsize=10)
    return figure


def write(folder: Path, target: Path = FIGURES) -> list[Path]:
    """Every figure whose record is in ``folder``, in ``target``."""
    makers: dict[str, tuple[str, Callable[[Record], Figure]]] = {
        "lam": ("lam", dots), "corruption": ("corruption", corruption), "cost": ("lam", cost),
    }  # fmt: skip
    written = []
    for name, (protocol, make) in makers.items():
        source = folder / f"{protocol}.json"
        if source.is_file():
            written.append(target / f"{name}.png")
            save(make(json.loads(source.read_text())), written[-1])
    return written


def save(figure: Figure, path: Path) -> None:
    """A PNG with a palette: a third of the size, and no eye sees it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=DPI, facecolor="white")
    image = Image.open(buffer).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    print(*write(Path(sys.argv[1])), sep="\n")
