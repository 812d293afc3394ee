"""Figures of the pages from the committed JSON, with their titles: questions that they answer.

python -m benchmarks figures
python -m benchmarks retrieval --pieces figures
python -m benchmarks scale --pieces figure
python -m benchmarks variants --pieces figure figures
"""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.corruptions import TYPES
from benchmarks.plots import (
    DotPanel,
    Figure,
    Setting,
    Sweep,
    TradeOff,
    abstention_plot,
    bars_plot,
    cost_plot,
    dot_plot,
    evidence_plot,
    headed,
    heat_plot,
    promises_plot,
    reliability_plots,
    save_figure,
    scale_plot,
    settings_plot,
    sweep_plot,
    trade_off_plot,
)
from benchmarks.records import FIGURES, RESULTS, figures_of, folder_of, read_record
from benchmarks.report.charts import cost_points
from benchmarks.report.families import heat, severity_keys
from benchmarks.report.glossary import about
from benchmarks.report.reading import Part, Record, described, known, parts, summary
from benchmarks.report.three_numbers import MATCH, same_network
from benchmarks.retrieval.evidence import RIVALS
from benchmarks.retrieval.power import power_figure
from benchmarks.retrieval.split import ALPHAS, PROMISES, SHARES
from benchmarks.retrieval.tables import SCORES
from benchmarks.variants.online import NOTHING
from benchmarks.variants.people import CHOSEN, CONCENTRATIONS, LABELS, LAST
from benchmarks.variants.transfer import ASKED, MANY, TRIALS
from benchmarks.variants.views import KINDS, NOISES, NOISY, REGULARIZE, VIEWS

NONE = math.nan
TABLE_8 = (NONE, NONE, 0.831, 0.884, 0.862, 0.862, 0.853)
"""Printed for the weights in ``REGULARIZE``: minus the correlation of kappa; none: constant."""
TABLE_5 = {"crop rank": (NONE, 0.68, NONE, 0.64), "entropy rank": (NONE, 0.29, NONE, 0.24)}
"""Kirchhof et al. 2023a: soft and hard labels of CIFAR-10H, kappa = |z|."""
OOD = "auroc "
OURS = "laplace"


def dots(record: Record) -> Figure:
    """R-AUROC, and AUROC of each OOD set, of every method: two columns a task."""
    figure = dot_plot({part.task: _dots(part) for part in parts(record)}, OURS)
    note = (
        f"Left: chance that a query with a wrong neighbour is the less certain one. Right: chance "
        "that an OOD input is less certain than a query.\nGuessing: .5 (dotted). Rows by the left "
        f"column, ours in blue. Means and standard errors of {_seeds(record)} seeds."
    )
    return headed(figure, "Who knows which answers are wrong, and what is strange?", note)


def _dots(part: Part) -> DotPanel:
    """The best at errors first."""
    of_network = {name: part.methods[name] for name in _whole(part) if same_network(name)}
    means = {name: summary(rows, "r_auroc").mean for name, rows in of_network.items()}
    order = sorted(means, key=lambda name: -means[name] if known(means[name]) else math.inf)

    def points(key: str) -> list[tuple[float, float]]:
        found = [summary(of_network[name], key) for name in order]
        return [(one.mean, one.error) for one in found]

    sets = {key.removeprefix(OOD): points(key) for key in part.metrics if key.startswith(OOD)}
    first = described("r_auroc").name
    return DotPanel(order, first, points("r_auroc"), "AUROC of OOD inputs", sets)


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
    note = f"{part.task}, mean of {_seeds(record)} seeds; errors are in the table."
    return headed(figure, "Whose uncertainty grows as an image gets worse?", note)


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
    figure = cost_plot(tasks, "CPU ms per query (logarithmic)", described(main).name)
    note = f"Vertical lines: standard errors of {_seeds(record)} seeds. Up and left is better."
    return headed(figure, "What does it cost to know which answers are wrong?", note)


MAKERS: dict[str, tuple[str, Callable[[Record], Figure]]] = {
    "lam": ("lam", dots),
    "corruption": ("corruption", corruption),
    "cost": ("lam", cost),
}
"""Figure -> the protocol whose record it shows, and its function."""


def guarded(record: Record) -> Figure:
    """Time of a query of a FAISS index, bare and guarded."""
    times = {
        "bare": "bare_p50",
        "guarded": "guarded_p50",
        "guarded, 100 queries together": "guarded_together",
    }
    series = {name: [1e3 * row[key] for row in record["rows"]] for name, key in times.items()}
    groups = [f"{row['n']:,} items\n{row['engine']}" for row in record["rows"]]
    figure = bars_plot(groups, series, "ms a query (median, logarithmic)", "%.2g")
    return headed(figure, "What does a guard add to a query?", "64 numbers a vector, one core.")


def served(record: Record) -> Figure:
    """Requests a second of the server, and of Python without it."""
    ways = {
        "Python, one at a time": ("Python", 1, 1),
        "server, one client": ("served", 16, 1),
        "server, 32 clients": ("served", 16, 32),
    }
    problems = list(dict.fromkeys(row["problem"] for row in record["rows"]))
    rate = {
        (row["problem"], row["how"], row["batch"], row["clients"]): row["per_second"]
        for row in record["rows"]
    }
    series = {name: [rate[(problem, *way)] for problem in problems] for name, way in ways.items()}
    groups = [problem.replace(", ", "\n") for problem in problems]
    figure = bars_plot(groups, series, "requests a second (logarithmic)", "%.0f")
    cores = record["environment"]["cores"]
    note = f"The model included, on {cores} CPU cores; the server puts up to 16 requests together."
    return headed(figure, "How many queries does the server answer?", note)


MEASURED: dict[str, Callable[[Record], Figure]] = {"guard": guarded, "serve": served}
"""Record, and figure, -> its function."""


def write(folder: Path, target: Path) -> list[Path]:
    """Every figure whose record is in ``folder``, in ``target``."""
    written = []
    for name, (protocol, make) in MAKERS.items():
        source = folder / f"{protocol}.json"
        if source.is_file():
            figure = make(json.loads(source.read_text()))
            written += save_figure(figure, target / f"{name}.png")
    for name, draw in MEASURED.items():
        if folder.is_relative_to(RESULTS):
            written += save_figure(draw(read_record(name)), target / f"{name}.png")
    return written


def run(options: Namespace) -> None:
    """Write those of a size, or of a folder."""
    folder = options.json or RESULTS / options.size
    print(*write(folder, options.output or FIGURES), sep="\n")


def run_scale(options: Namespace) -> None:
    """How it scales, as far as the record goes."""
    record = read_record("scale", folder_of(options))
    cores = record["environment"]["cores"]
    note = f"One run each, on {cores} CPU cores."
    figure = headed(scale_plot(record), "How does a fit grow with the data?", note)
    print(*save_figure(figure, figures_of(options) / "scale.png"), sep="\n")


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
        shown.append(TradeOff(f"embedding size {size}", without, of))
    title = "Does learning with the posterior pay, in retrieval and in calibration?"
    note = "One dot a setting, one seed, on 5,000 images that chose the settings."
    return headed(trade_off_plot(shown), title, note)


def concentration(rows: Sequence[dict[str, Any]]) -> Figure:
    """What noise among the augmentations and the weight of k^2 do to a learnt concentration."""

    def seeds(line: str, read: Callable[[dict[str, Any]], float]) -> list[float]:
        return [read(row) for row in rows if row["line"] == line]

    others = [kind for kind in TYPES if kind not in NOISES]
    of = {
        kind: lambda row, names=names: sum(row[name] for name in names) / len(names)
        for kind, names in (("four noises", NOISES), ("15 other types", others))
    }
    noise = {
        f"{method}, {kind}": [seeds(f"{method}: {pairs}", read) for pairs in (VIEWS, NOISY)]
        for method in KINDS
        for kind, read in of.items()
    }
    own = "explicit concentration"
    lines = {f"{w:g}"[1:]: f"{own}, regularize {w}: {VIEWS}" for w in REGULARIZE}
    weight = "weight of k\u00b2 (of the alignment: .05)"
    rank = "rank correlation, severity and uncertainty"
    swept = [
        Sweep(title, weight, y, list(lines),
              {f"{own}, all types": [seeds(line, read) for line in lines.values()]}, shown, limits)
        for title, y, read, shown, limits in (
            ("Weight of k\u00b2: does k follow?", rank, lambda row: row["severity"],
             {"printed, 18 types": TABLE_8}, (-1, 1)),
            ("Weight of k\u00b2: does k vary?", "deviation of k over its mean",
             lambda row: row["variation"], {}, (0, 0.6)),
        )
    ]  # fmt: skip
    first = Sweep("Noise among the augmentations", "views", rank, ["without", "with noise"], noise)
    figure = sweep_plot([first, *swept])
    note = (
        "CIFAR-10 on frozen features; uncertainty: 1 over the learnt concentration. Above 0 it "
        "grows with the severity of a corruption.\nMeans of 3 seeds, 95 % t intervals. Printed: "
        "its paper, table 8; at the two smallest weights k was constant there."
    )
    return headed(figure, "When does a learnt concentration follow corruption?", note)


def settings(rows: Sequence[dict[str, Any]]) -> Figure:
    """Recall@1 and R-AUROC of every setting of a method."""

    def pair(name: str, trial: int) -> tuple[list[float], list[float]]:
        own = [row for row in rows if (row["method"], row["trial"]) == (name, trial)]
        return [row["recall@1"] for row in own], [row["r_auroc"] for row in own]

    methods = {name: [pair(name, trial) for trial in range(TRIALS)] for name in ASKED}
    reference = "cross-entropy trained on half of the images of these species", pair(MANY, 0)
    figure = settings_plot(methods, "recall@1 (right: retrieves better)",
                           "R-AUROC (dotted: guessing)",
                           reference)  # fmt: skip
    note = (
        "R-AUROC: chance that a wrong answer is less certain than a right one. Birds of 50 species "
        "that training never saw;\n3 seeds, trainings of ten rounds."
    )
    return headed(figure, "Does the setting that retrieves best also know its errors best?", note)


def crops_choose(rows: Sequence[dict[str, Any]]) -> Figure:
    """The last model of a training and the one that crops chose, fold by fold."""
    kinds = [(labels, head) for labels in LABELS for head in CONCENTRATIONS]

    def seeds(metric: str, model: str) -> list[list[float]]:
        return [
            [row[metric] for row in rows
             if (row["labels"], row["concentration"], row["model"]) == (*kind, model)]
            for kind in kinds
        ]  # fmt: skip

    names = [f"{labels},\n{head}" for labels, head in kinds]
    folds = len({row["fold"] for row in rows})
    shown = [
        Sweep(title, "labels, kappa", y, names,
              {f"model: {model}": seeds(metric, model) for model in (LAST, CHOSEN)},
              {"printed, soft and majority labels": printed}, (-0.1, 0.8), joined=False)
        for title, y, metric, printed in (
            ("Crops", "rank correlation with what was cut off", "crop rank", TABLE_5["crop rank"]),
            ("People", "rank correlation with their entropy", "entropy rank",
             TABLE_5["entropy rank"]),
        )
    ]  # fmt: skip
    note = (
        f"MCInfoNCE on CIFAR-10H, uncertainty 1 / kappa. Means of {folds} folds, 95 % t intervals. "
        "Printed: Kirchhof et al. 2023a, table 5, kappa: norm."
    )
    return headed(sweep_plot(shown), "Do crops choose a model that knows what is ambiguous?", note)


def run_papers(options: Namespace) -> None:
    """Sweeps of views, settings and people."""
    figures = {"concentration": ("views", concentration), "settings": ("transfer", settings),
               "people": ("people", crops_choose)}  # fmt: skip
    for name, (record, make) in figures.items():
        save_figure(make(read_record(record)["rows"]), FIGURES / f"{name}.png")


def run_online(options: Namespace) -> None:
    """The sweep of online and post-hoc settings."""
    save_figure(trade_offs(read_record("online")), FIGURES / "online.png")


def retrieval_figures(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Each by its name."""
    splits = max(row["splits"] for row in rows)
    half = f"n: queries of one test half; means of {splits} random halves."
    makers = {
        "abstention": (
            abstention_plot(rows, SCORES, SHARES),
            "How many answers are right, if only the surest are given?",
            f"{half} The band is that of one half.",
        ),
        "reliability": (
            reliability_plots(rows),
            "Is a match probability of 80 % right in 80 of 100 cases?",
            f"{half} Intervals are those of one half. No bins of fewer than 5 queries.",
        ),
        "promises": (
            promises_plot(rows, PROMISES, [1 - alpha for alpha in ALPHAS]),
            "Are guarantees kept?",
            f"{splits} random splits into halves: one calibrates, one tests. Sets: of queries that "
            "have a match. What was never guaranteed is left out.",
        ),
    }
    return {name: headed(*words) for name, words in makers.items()}


def evidence_figure(rows: Sequence[dict[str, Any]]) -> Figure:
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
    rows = [{**row, "problem": row["problem"] + " *" * row["developed on"]} for row in rows]
    return headed(
        evidence_plot(rows, steps, rivals),
        "What tells a right nearest item from a wrong one?",
        "Up to 400 queries calibrate. * The class model was developed on it. Circle: the best of "
        "eleven rivals, named right.",
    )


def run_retrieval(options: Namespace) -> None:
    """What a search promises and keeps."""
    folder = folder_of(options)
    figures = retrieval_figures(read_record("retrieval", folder)["rows"])
    if (folder / "evidence.json").is_file():
        figures["evidence"] = evidence_figure(read_record("evidence", folder)["rows"])
    if (folder / "power.json").is_file():
        figures["power"] = power_figure(read_record("power", folder))
    for name, figure in figures.items():
        save_figure(figure, figures_of(options) / f"retrieval-{name}.png")
