"""PNG figures of the pages, from the JSON and, of the neighbours, from one search.

python -m benchmarks figures
python -m benchmarks retrieval --pieces figures neighbours questions
python -m benchmarks scale --pieces figure
python -m benchmarks variants --pieces figure
python -m benchmarks recovery --pieces figure
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.plots import (
    DotPanel,
    Figure,
    Setting,
    TradeOff,
    abstention_plot,
    cost_plot,
    dot_plot,
    draws_plot,
    heat_plot,
    promises_plot,
    reliability_plots,
    save_png,
    scale_plot,
    trade_off_plot,
)
from benchmarks.records import FIGURES, RESULTS, figures_of, folder_of, read_record
from benchmarks.recovery.runs import DRAWS
from benchmarks.report.charts import cost_points
from benchmarks.report.families import colour, heat
from benchmarks.report.glossary import about
from benchmarks.report.reading import Part, Record, described, known, parts, summary
from benchmarks.report.three_numbers import MATCH, same_network
from benchmarks.retrieval.problems import Source, fashion
from benchmarks.retrieval.split import ALPHAS, PROMISES, SHARES
from benchmarks.retrieval.tables import SCORES
from benchmarks.variants.online import NOTHING
from laplace_metric.search import SearchResult

WHITE = (255, 255, 255)
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
           "boot")  # fmt: skip
CALIBRATED, SHOWN, N_OOD, K = 2_000, slice(3_000, 3_005), 2, 6
"""Of the neighbours: queries that calibrate, rows that are shown, OOD queries, neighbours."""
EACH = 1
"""Queries of each kind, where three kinds are shown."""


def dots(record: Record) -> Figure:
    """R-AUROC and mean AUROC of the OOD sets of each method, one panel a task."""
    return dot_plot({part.task: _dots(part) for part in parts(record)})


def _dots(part: Part) -> DotPanel:
    """The best at errors first. The legend numbers the OOD sets of a task, the label names them."""
    of_network = {name: part.methods[name] for name in _whole(part) if same_network(name)}
    order = sorted(of_network, key=lambda name: -summary(of_network[name], "r_auroc").mean)
    methods = {name: of_network[name] for name in order}
    keys = ["r_auroc", *(key for key in part.metrics if key.startswith("auroc "))]
    names = [f"AUROC, OOD set {i}" if i else described(key).name for i, key in enumerate(keys)]
    sets = [f"{i}: {key.removeprefix('auroc ')}" for i, key in enumerate(keys) if i]
    summaries = {
        name: [summary(rows, key) for rows in methods.values()]
        for name, key in zip(names, keys, strict=True)
    }
    values = {name: [(one.mean, one.error) for one in of] for name, of in summaries.items()}
    return DotPanel(order, values, "OOD sets " + ", ".join(sets) if sets else "")


def _whole(part: Part) -> list[str]:
    """Methods with as many seeds as any: one seed is no result."""
    most = max(map(len, part.methods.values()))
    return [name for name, rows in part.methods.items() if len(rows) == most]


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
    """The main metric against the CPU time of a query, one panel a task.

    Without the match probability, whose time has the building of five indexes in it.
    """
    main = about(record["protocol"]).main
    tasks = {
        part.task: [
            point
            for point in cost_points(part, main)
            if same_network(point.name) and point.name != MATCH and point.name in _whole(part)
        ]
        for part in parts(record)
    }
    return cost_plot(tasks, "CPU ms per query", described(main).name)


MAKERS: dict[str, tuple[str, Callable[[Record], Figure]]] = {
    "lam": ("lam", dots),
    "corruption": ("corruption", corruption),
    "cost": ("lam", cost),
}
"""Figure -> the protocol whose record it shows, and its function."""


def write(folder: Path, target: Path) -> list[Path]:
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


def run_scale(options: Namespace) -> None:
    """How it scales, as far as the record goes."""
    path = figures_of(options) / "scale.png"
    save_png(scale_plot(read_record("scale", folder_of(options))), path)
    print(path.name)


def trade_offs(record: dict[str, Any]) -> Figure:
    """Every line of the sweep on validation images, Z by Z; rings: those that were chosen."""
    asked = {(row["embedding_size"], row["method"]) for row in record["test"]}

    def points(rows: list[dict[str, Any]]) -> list[Setting]:
        return [
            Setting(
                row["recall@1"], row["retrieval_ece"],
                (row["embedding_size"], row["method"]) in asked,
            )
            for row in rows
        ]  # fmt: skip

    shown = []
    for size in sorted({row["embedding_size"] for row in record["validation"]}):
        rows = [row for row in record["validation"] if row["embedding_size"] == size]
        online = [row for row in rows if row["kind"] == "online"]
        kinds = {
            "post-hoc": [row for row in rows if row["kind"] == "post-hoc"],
            "online, third epoch": [row for row in online if NOTHING not in row["method"]],
            "online, from nothing": [row for row in online if NOTHING in row["method"]],
        }
        (without,) = [row["recall@1"] for row in rows if row["kind"] == "plain"]
        of = {kind: points(lines) for kind, lines in kinds.items()}
        shown.append(TradeOff(f"Z = {size}", without, of))
    return trade_off_plot(shown)


def run_online(options: Namespace) -> None:
    """The sweep of online and post-hoc settings."""
    save_png(trade_offs(read_record("online")), FIGURES / "online.png")


def run_recovery(options: Namespace) -> None:
    """The error of the certainty against draws."""
    if options.size == "smoke":
        return
    rows = read_record("recovery")["rows"]
    errors = [
        [row["certainty"]["rmse"] for row in rows if row["loss"] == f"mcinfonce, {n} draws"]
        for n in DRAWS
    ]
    save_png(draws_plot(DRAWS, errors, 6.15), FIGURES / "recovery-draws.png")


def retrieval_figures(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Each by its name."""
    return {
        "abstention": abstention_plot(rows, SCORES, SHARES),
        "reliability": reliability_plots(rows),
        "promises": promises_plot(rows, PROMISES, [1 - alpha for alpha in ALPHAS]),
    }


def run_retrieval(options: Namespace) -> None:
    """What a search promises and keeps."""
    rows = read_record("retrieval", folder_of(options))["rows"]
    for name, figure in retrieval_figures(rows).items():
        save_png(figure, figures_of(options) / f"retrieval-{name}.png")


def run_questions(options: Namespace) -> None:
    """Three questions, three numbers: the clearest, most ambiguous and strangest of many queries.

    Of FashionMNIST those with the lowest ambiguity and epistemic number, and with the highest
    ambiguity where the epistemic number is below its median; of KMNIST those with the highest
    epistemic number. Of different classes each.
    """
    problem = fashion(Source(options.data, Path()))
    (gallery, labels), (pool, pool_labels) = problem.gallery, problem.pool
    index = problem.embedder.index(gallery, [CLASSES[y] for y in labels], progress=False)
    index.calibrate(pool[:CALIBRATED], [CLASSES[y] for y in pool_labels[:CALIBRATED]])
    rows = slice(CALIBRATED, 2 * CALIBRATED)
    queries, strange = pool[rows], problem.ood["kmnist"][:CALIBRATED]
    found, foreign = index.search(queries, K), index.search(strange, K)
    ambiguity, epistemic = found.ambiguity, found.epistemic
    assert ambiguity is not None
    familiar = epistemic < epistemic.median()
    clear = _of_different_labels(found, (-ambiguity - epistemic).masked_fill(~familiar, -torch.inf))
    unsure = _of_different_labels(found, ambiguity.masked_fill(~familiar, -torch.inf))
    odd = foreign.epistemic.argsort(descending=True)[:EACH]
    shown = torch.cat([queries[clear], queries[unsure], strange[odd]])
    classes = [CLASSES[pool_labels[rows][row]] for row in [*clear, *unsure]]
    truth = [*classes, *["a character"] * EACH]
    figure = index.search(shown, K).figure(shown, gallery, truth=truth)
    save_png(figure, (options.output or FIGURES) / "three-questions.png")


def _of_different_labels(result: SearchResult, score: Tensor) -> list[int]:
    """The best scored queries, no two with one answer."""
    assert result.label is not None
    chosen: dict[str, int] = {}
    for row in score.argsort(descending=True).tolist():
        chosen.setdefault(result.label[row], row)
        if len(chosen) == EACH:
            break
    return list(chosen.values())


def run_neighbours(options: Namespace) -> None:
    """Five queries of the classes of the gallery with their neighbours, two of other images."""
    problem = fashion(Source(options.data, Path()))
    (gallery, labels), (pool, pool_labels) = problem.gallery, problem.pool
    index = problem.embedder.index(gallery, [CLASSES[y] for y in labels], progress=False)
    index.calibrate(pool[:CALIBRATED], [CLASSES[y] for y in pool_labels[:CALIBRATED]])
    queries = torch.cat([pool[SHOWN], problem.ood["kmnist"][:N_OOD]])
    truth = [*(CLASSES[y] for y in pool_labels[SHOWN]), *["a character"] * N_OOD]
    figure = index.search(queries, K).figure(queries, gallery, truth=truth)
    save_png(figure, (options.output or FIGURES) / "retrieval-neighbours.png")
