"""Tables of the comparison, from ``results/comparison.json``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from benchmarks.comparison.describe import WORDS
from benchmarks.comparison.methods import BASE, METHODS
from benchmarks.markdown import markdown
from benchmarks.records import read_record
from laplace_metric.evaluation import mean_and_standard_error

Row = dict[str, Any]
SEEDS = 3

QUALITY: dict[str, Callable[[Row], float]] = {
    "recall@1": lambda row: row["recall@1"],
    "R-AUROC": lambda row: row["r_auroc"],
    "AUSC": lambda row: row["ausc"],
    "AUROC MNIST": lambda row: row["out"]["mnist"]["auroc"],
    "AUROC KMNIST": lambda row: row["out"]["kmnist"]["auroc"],
}


def rows_of(size: int) -> dict[str, list[Row]]:
    """Runs of every method with all seeds, in the order of ``WORDS``."""
    rows = [r for r in read_record("comparison")["rows"] if r["embedding_size"] == size]
    of = {name: [row for row in rows if row["method"] == name] for name in WORDS}
    return {name: found for name, found in of.items() if len(found) == SEEDS}


def cell(values: list[float]) -> str:
    """Mean ± standard error over the seeds, in thousandths."""
    summary = mean_and_standard_error(values)
    text = f"{summary.mean:.3f} ± {summary.standard_error:.3f}"
    return re.sub(r"\b0\.", ".", text)


def quality(size: int = 64) -> str:
    """Retrieval, and what the uncertainty says of errors and of strangers."""
    lines = [
        [name, *(cell([read(row) for row in rows]) for read in QUALITY.values()), ece(name, rows)]
        for name, rows in rows_of(size).items()
    ]
    return markdown(["method", *QUALITY, "ECE"], lines)


def ece(name: str, rows: list[Row]) -> str:
    """Of the vote over draws; points have none."""
    if name in METHODS and METHODS[name].draws == 1:
        return ""
    return cell([row["retrieval_ece"] for row in rows])


def cost(size: int = 64) -> str:
    """Every method in words, with its measured cost relative to plain metric learning."""
    rows = rows_of(size)
    lines = [
        [link(name), w.source, w.predicts, w.uncertainty, *relative(rows, name), tests(w.tests)]
        for name, w in WORDS.items()
        if name in rows
    ]
    header = ["method", "source", "predicts", "uncertainty", "numbers added"]
    return markdown([*header, "training", "inference", "tests"], lines)


def link(name: str) -> str:
    """The method's name, linked to its file."""
    file = WORDS[name].file
    return f"[{name}]({file}.py)" if file else name


def tests(name: str) -> str:
    """Where its tests are."""
    if name.endswith("/"):
        return f"[{name}](../tests/{name})"
    return f"[{name}](../tests/baselines/{name}.py)"


def relative(rows: dict[str, list[Row]], name: str) -> tuple[str, str, str]:
    """Numbers added, and CPU time over that of metric learning (fits on top of it: plus)."""

    def mean(method: str, key: str) -> float:
        return sum(row[key] for row in rows[method]) / SEEDS

    training = mean(name, "fit_cpu_seconds") / mean(BASE, "fit_cpu_seconds")
    after = name in METHODS and METHODS[name].post_hoc
    inference = mean(name, "inference_ms") / mean(BASE, "inference_ms")
    added = f"{rows[name][0]['added']:,}"
    return added, f"{'+ ' if after else ''}{training:.2f} x", f"{inference:.2f} x"


def choices() -> str:
    """What was tried, its validation AUSC, and what was taken."""
    lines = []
    for row in read_record("comparison")["tuned"]:
        tried = [one for one in row["tried"] if "ausc" in one]
        if not tried:
            continue
        best = max(tried, key=lambda one: float(one["ausc"]))
        shown = ", ".join(f"{words(one['settings'])}: {one['ausc']:.3f}" for one in tried)
        lines.append([row["method"], words(best["settings"]), shown])
    order = list(WORDS)
    lines.sort(key=lambda line: order.index(line[0]))
    return markdown(["method", "taken", "validation AUSC of each setting"], lines)


def words(settings: dict[str, Any]) -> str:
    """Settings, shortly."""
    return " ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())
