"""Figures of the pages from the committed JSON, with their titles: questions that they answer.

``python -m benchmarks figures`` writes all that need no images; those of images have pieces of
their own (``retrieval --pieces twenty-figure neighbours questions posterior-neighbours``, and
``figures`` of ``image-text``).
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.plots import (
    DotPanel,
    Figure,
    Line,
    TradeOff,
    cost_plot,
    dot_plot,
    evidence_plot,
    headed,
    heat_plot,
    points_plot,
    save_figure,
    scale_plot,
    trade_off_plot,
)
from benchmarks.posterior.figure import share_figure
from benchmarks.records import FIGURES, RESULTS, read_record
from benchmarks.report.charts import cost_points
from benchmarks.report.families import heat, severity_keys
from benchmarks.report.glossary import about
from benchmarks.report.reading import Part, Record, described, known, parts, summary
from benchmarks.report.three_numbers import MATCH
from benchmarks.retrieval.evidence import RIVALS
from benchmarks.retrieval.forty import forty_figure
from benchmarks.retrieval.power import power_figure

OOD = "auroc "
DETECTION = "detection"
OURS = "laplace"


def dots(record: Record) -> Figure:
    """R-AUROC, and AUROC of each OOD set, of every method: two columns a task."""
    figure = dot_plot({_named(part): _dots(part) for part in parts(record)}, OURS)
    note = (
        f"Left: chance that a query with a wrong neighbour is the less certain one. Right: chance "
        "that an unfamiliar query is less certain than another.\nGuessing: .5 (dotted). Rows by "
        f"the left column, ours in blue. Means and standard errors of {_seeds(record)} seeds."
    )
    return headed(
        figure, "Who knows which answers are wrong, and which queries are unfamiliar?", note
    )


def _dots(part: Part) -> DotPanel:
    """The best at errors first."""
    of_network = {name: part.methods[name] for name in _whole(part)}
    means = {name: summary(rows, "r_auroc").mean for name, rows in of_network.items()}
    order = sorted(means, key=lambda name: -means[name] if known(means[name]) else math.inf)

    def points(key: str) -> list[tuple[float, float]]:
        found = [summary(of_network[name], key) for name in order]
        return [(one.mean, one.error) for one in found]

    sets = {key.removeprefix(OOD): points(key) for key in part.metrics if key.startswith(OOD)}
    first = described("r_auroc").name
    return DotPanel(order, first, points("r_auroc"), "AUROC, unfamiliar", sets)


def _named(part: Part) -> str:
    """A task as the tables call it."""
    return {"cub": "birds"}.get(part.task, part.task)


def _whole(part: Part) -> list[str]:
    """Methods with as many seeds as any: one seed is no result."""
    most = max(map(len, part.methods.values()))
    return [name for name, rows in part.methods.items() if len(rows) == most]


def _seeds(record: Record) -> int:
    return len({row["seed"] for row in record["rows"]})


def corruption(record: Record) -> Figure:
    """Rank correlation with severity, methods by types, of the first task; best means first."""
    (part, *_) = parts(record)
    table = heat(part)
    assert table, "no severities"
    keys = severity_keys(part)
    rows = {
        name: [summary(part.methods[name], key).mean for key in keys] for name, _ in table.lines
    }
    order = sorted(rows, key=lambda name: -rows[name][-1] if known(rows[name][-1]) else math.inf)
    label = "rank correlation of uncertainty with severity (\u22121: falls, 0: neither, 1: rises)"
    figure = heat_plot(table.columns, {name: rows[name] for name in order}, label)
    note = f"{part.task}, mean of {_seeds(record)} seeds; errors are in the report."
    return headed(figure, "Whose uncertainty grows as an image gets worse?", note)


def cost(record: Record) -> Figure:
    """The main metric against the CPU time of a query, one panel a task.

    Without the match probability, whose time has the building of five indexes in it: the figure
    says so.
    """
    main = about(record["protocol"]).main
    tasks = {
        _named(part): [
            point
            for point in cost_points(part, main)
            if point.name != MATCH and point.name in _whole(part)
        ]
        for part in parts(record)
    }
    figure = cost_plot(tasks, "CPU ms per query (logarithmic)", described(main).name)
    note = (
        f"Vertical lines: standard errors of {_seeds(record)} seeds. Up and left is better. "
        "Without the match probability, whose time includes building indexes."
    )
    return headed(figure, "What does it cost to know which answers are wrong?", note)


def guarded(record: Record) -> Figure:
    """Time of a query of a FAISS index, bare and guarded."""
    times = {
        "bare": "bare_p50",
        "guarded": "guarded_p50",
        "guarded, 100 queries together": "guarded_together",
    }
    series = {name: [1e3 * row[key] for row in record["rows"]] for name, key in times.items()}
    groups = [f"{row['n']:,} items\n{row['engine']}" for row in record["rows"]]
    figure = points_plot(groups, series, "ms a query (median, logarithmic)", "%.2g")
    return headed(figure, "What does a guard add to a query?", "64 numbers a vector, one core.")


def served(record: Record) -> Figure:
    """Requests a second of the server, and of Python without it."""
    ways = {
        "Python, one at a time": ("Python", 1, 1),
        "server, one client": ("served", 1, 1),
        "server, 32 clients": ("served", 16, 32),
    }
    problems = list(dict.fromkeys(row["problem"] for row in record["rows"]))
    rate = {
        (row["problem"], row["how"], row["batch"], row["clients"]): row["per_second"]
        for row in record["rows"]
    }
    series = {name: [rate[(problem, *way)] for problem in problems] for name, way in ways.items()}
    groups = [problem.replace(", ", "\n") for problem in problems]
    figure = points_plot(groups, series, "requests a second (logarithmic)", "%.0f")
    threads = record["environment"]["threads"]
    note = (
        f"The model included, on {threads} thread{'s' * (threads > 1)}. "
        "For 32 clients the server puts up to 16 requests together."
    )
    return headed(figure, "How many queries does the server answer?", note)


def points(record: Record) -> Figure:
    """Time and memory of a fit by the number of points."""
    threads = record["environment"]["threads"]
    note = f"One run each, on {threads} thread{'s' * (threads > 1)}."
    return headed(scale_plot(record["rows"]), "How does a fit grow with the data?", note)


def online(record: Record) -> Figure:
    """Every line on test images, Z by Z: means over the seeds, and standard errors."""

    def over_seeds(name: str, size: int, key: str) -> tuple[float, float]:
        of = [r for r in record["rows"] if (r["method"], r["embedding_size"]) == (name, size)]
        detected = [fmean(one["auroc"] for one in row["out"].values()) for row in of]
        found = mean_and_standard_error(detected if key == DETECTION else [r[key] for r in of])
        return found.mean, found.standard_error

    shown = []
    for size in sorted({row["embedding_size"] for row in record["rows"]}):
        kinds: dict[str, list[Line]] = {}
        for name, kind in {
            r["method"]: r["kind"] for r in record["rows"] if r["embedding_size"] == size
        }.items():
            if kind != "plain":
                numbers = (over_seeds(name, size, key) for key in (DETECTION, "retrieval_ece"))
                kinds.setdefault(kind, []).append(Line(*numbers))
        plain, _ = over_seeds("plain", size, DETECTION)
        shown.append(TradeOff(f"embedding size {size}", plain, dict(sorted(kinds.items()))))
    title = "Does learning with the posterior pay, in detection and in calibration?"
    seeds = len({row["seed"] for row in record["rows"]})
    note = (
        f"Means of {seeds} seeds on 2,500 test images, with standard errors; recall is the same. "
        "Foreign: MNIST and KMNIST."
    )
    return headed(trade_off_plot(shown), title, note)


def evidence(record: Record) -> Figure:
    """What each piece of evidence adds to the AUROC, next to the best rival."""
    steps = [
        ("+ distance", "distance and rank"),
        ("+ votes", "+ labels of 20 neighbours"),
        ("+ class model", "+ class model of the index"),
        ("+ near and far", "+ ambiguity, near and far"),
        ("+ posterior variance", "+ posterior variance: all"),
    ]
    words = {"share": "label share", "four": "logistic of 4", "probe": "linear probe"}
    rivals = {name: words.get(name, name) for name in RIVALS}
    rows = [
        {**row, "problem": row["problem"] + " *" * row["developed on"]} for row in record["rows"]
    ]
    return headed(
        evidence_plot(rows, steps, rivals),
        "What tells a right nearest item from a wrong one?",
        "Up to 400 queries calibrate. * The class model was developed on it. Circle: the best of "
        "eleven rivals with the same labels and queries, named right.",
    )


PROTOCOLS: dict[str, tuple[str, Callable[[Record], Figure]]] = {
    "lam": ("lam", dots),
    "corruption": ("corruption", corruption),
    "cost": ("lam", cost),
}
"""Figure -> the protocol whose record it shows, and its function."""
OTHERS: dict[str, tuple[str, Callable[[Record], Figure]]] = {
    "guard": ("guard", guarded),
    "serve": ("serve", served),
    "scale": ("points", points),
    "online": ("online", online),
    "posterior": ("posterior", share_figure),
    "retrieval-evidence": ("evidence", evidence),
    "retrieval-power": ("power", power_figure),
    "forty": ("forty", forty_figure),
}
"""Figure -> its record, and its function."""


def write(folder: Path, target: Path) -> list[Path]:
    """Write every figure whose record is in ``folder``, and return the paths."""
    written = []
    for name, (protocol, make) in PROTOCOLS.items():
        if (folder / f"{protocol}.json").is_file():
            figure = make(read_record(protocol, folder))
            written += save_figure(figure, target / f"{name}.png")
    for name, (record, draw) in OTHERS.items():
        if folder.is_relative_to(RESULTS):
            written += save_figure(draw(read_record(record)), target / f"{name}.png")
    return written


def run(options: Namespace) -> None:
    """Write those of a size, or of a folder."""
    folder = options.json or RESULTS / options.size
    print(*write(folder, options.output or FIGURES), sep="\n")
