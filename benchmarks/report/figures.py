"""PNG figures of the README from collected JSON: ``python -m benchmarks figures``."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from benchmarks.plots import (
    FIGURES,
    DotPanel,
    Figure,
    cost_plot,
    dot_plot,
    heat_plot,
    save_png,
)
from benchmarks.records import RESULTS
from benchmarks.report.charts import cost_points
from benchmarks.report.glossary import about
from benchmarks.report.reading import Part, Record, described, known, parts, summary
from benchmarks.report.severity import colour, heat

WHITE = (255, 255, 255)


def dots(record: Record) -> Figure:
    """R-AUROC and mean AUROC of the OOD sets of each method, one panel a task."""
    return dot_plot({part.task: _dots(part) for part in parts(record)})


def _dots(part: Part) -> DotPanel:
    """OOD sets differ between tasks: the legend numbers them, the label names them."""
    keys = ["r_auroc", *(key for key in part.metrics if key.startswith("auroc "))]
    names = [f"AUROC, OOD set {i}" if i else described(key).name for i, key in enumerate(keys)]
    sets = [f"{i}: {key.removeprefix('auroc ')}" for i, key in enumerate(keys) if i]
    summaries = {
        name: [summary(rows, key) for rows in part.methods.values()]
        for name, key in zip(names, keys, strict=True)
    }
    values = {name: [(one.mean, one.error) for one in of] for name, of in summaries.items()}
    return DotPanel(list(part.methods), values, "OOD sets " + ", ".join(sets) if sets else "")


def corruption(record: Record) -> Figure:
    """Rank correlation with severity, methods by types, of the first task."""
    (part, *_) = parts(record)
    table = heat(part)
    assert table, "no severities"
    rows = {}
    for (name, cells), runs in zip(table.lines, part.methods.values(), strict=True):
        means = [summary(runs, key).mean for key in table.keys]
        rows[name] = [
            (text, colour(mean), ink) if known(mean) else (text, WHITE, "#000")
            for (text, _, ink), mean in zip(cells, means, strict=True)
        ]
    return heat_plot(table.columns, rows, "rank correlation of uncertainty with severity")


def cost(record: Record) -> Figure:
    """The main metric against the CPU time of a query, one panel a task."""
    main = about(record["protocol"]).main
    tasks = {part.task: cost_points(part, main) for part in parts(record)}
    return cost_plot(tasks, "CPU ms per query", described(main).name)


MAKERS: dict[str, tuple[str, Callable[[Record], Figure]]] = {
    "lam": ("lam", dots),
    "corruption": ("corruption", corruption),
    "cost": ("lam", cost),
}
"""Figure -> the protocol whose record it shows, and its function."""


def write(folder: Path, target: Path = FIGURES) -> list[Path]:
    """Every figure whose record is in ``folder``, in ``target``."""
    written = []
    for name, (protocol, make) in MAKERS.items():
        source = folder / f"{protocol}.json"
        if source.is_file():
            written.append(target / f"{name}.png")
            save_png(make(json.loads(source.read_text())), written[-1])
    return written


def run(options: Namespace) -> None:
    """Write those of a size, or of a folder."""
    folder = options.json or RESULTS / options.size
    print(*write(folder, options.output or FIGURES), sep="\n")
