"""Numbers of URL (Kirchhof et al. 2023b) from the runs that its repository publishes.

``URL/published_runs.csv`` of the data folder is ``plots/wandb_export.csv`` of
https://github.com/mkirchhof/url (Apache-2.0): 333 runs, one a line. Like the paper, all numbers
leave out runs with a recall@1 below .1 on the new classes. Nothing is trained.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.engine.statistics import spearman
from laplace_metric.errors import FileFormatError, InputError

FILE = "URL/published_runs.csv"
LEAST_RECALL, SEEDS = 0.1, 3
NEW, PEOPLE, OLD = "best_test_avg_downstream", "best_furthertest_avg_downstream", "best_eval"
R_AUROC, RECALL, CROPS = "auroc_correct", "r1", "croppedHasBiggerUnc"
CORRELATED = {
    "section 4.5, errors on old and on new classes": (f"{OLD}_{R_AUROC}", f"{NEW}_{R_AUROC}"),
    "section 4.5, crops of old classes and errors on new ones": (
        f"{OLD}_{CROPS}", f"{NEW}_{R_AUROC}",
    ),
    "section 4.6, people and errors": (f"{PEOPLE}_rcorr_entropy", f"{PEOPLE}_{R_AUROC}"),
    "section 4.6, crops and errors": (f"{PEOPLE}_{CROPS}", f"{PEOPLE}_{R_AUROC}"),
}  # fmt: skip
"""What is asked -> two columns, whose rank correlation over the runs the paper prints."""
BACKBONES = ("resnet", "vit")
ON_BACKBONES = ("dropout", "sngp", "hetxl")
"""Ends of the names of backbones of which a method changes the network."""
Run = dict[str, str]
Row = dict[str, Any]


def read_runs(folder: Path) -> list[Run]:
    """Read the runs that reach the paper's least recall on the new classes.

    Raises
    ------
    InputError
        If the file is not there.
    FileFormatError
        If it lacks a column, or has no such run.
    """
    path = folder / FILE
    if not path.is_file():
        raise InputError(
            f"{path} is missing: it is plots/wandb_export.csv of https://github.com/mkirchhof/url."
        )
    with path.open(newline="") as file:
        runs = list(csv.DictReader(file))
    columns = {name for pair in CORRELATED.values() for name in pair}
    if lacking := sorted(columns - set(runs[0] if runs else ())):
        raise FileFormatError(f"{path} lacks the columns {lacking}. Fetch it again.")
    kept = [run for run in runs if number(run, f"{NEW}_{RECALL}") >= LEAST_RECALL]
    if not kept:
        raise FileFormatError(f"{path} has no run with a recall@1 of {LEAST_RECALL}.")
    return kept


def number(run: Run, column: str) -> float:
    """Return a number of a run; NaN where the run has none.

    Examples
    --------
    >>> number({"lr": "0.5", "best_eval_r1": ""}, "lr")
    0.5
    """
    text = run.get(column, "")
    return float(text) if text not in ("", "NaN", None) else math.nan


def correlation(runs: Sequence[Run], first: str, second: str) -> tuple[float, int]:
    """Return the rank correlation of two columns, and of how many runs it is."""
    pairs = [(number(run, first), number(run, second)) for run in runs]
    there = [pair for pair in pairs if not any(map(math.isnan, pair))]
    return spearman(*zip(*there, strict=True)), len(there)


def method_of(run: Run) -> tuple[str, str]:
    """Return the backbone and the method of a run, with the paper's eleven names.

    Examples
    --------
    >>> method_of({"model": "resnet50sngp", "loss": "cross-entropy", "num-heads": ""})
    ('resnet', 'sngp')
    """
    model, loss = run["model"], run["loss"]
    backbone = next(name for name in BACKBONES if model.startswith(name))
    changed = next((name for name in ON_BACKBONES if model.endswith(name)), None)
    if changed is None and run["num-heads"]:
        changed = "ensemble"
    return backbone, changed or loss


def seeds_of(runs: Sequence[Run]) -> list[Row]:
    """Return the means of every setting that has three seeds, of each backbone and method.

    A setting is named by its learning rate, which is drawn at random.
    """
    settings: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        settings[(*method_of(run), run["unc-module"], run["lr"])].append(run)
    return [
        {
            "backbone": backbone,
            "method": method,
            "uncertainty": uncertainty,
            "seeds": len(own),
            "r_auroc": fmean(number(run, f"{NEW}_{R_AUROC}") for run in own),
            "recall@1": fmean(number(run, f"{NEW}_{RECALL}") for run in own),
        }
        for (backbone, method, uncertainty, _), own in sorted(settings.items())
        if len(own) >= SEEDS
    ]


def trade_offs(runs: Sequence[Run]) -> tuple[int, int]:
    """Return how many methods trade recall@1 for R-AUROC over their settings, and of how many."""
    methods: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        methods[method_of(run)].append(run)
    columns = f"{NEW}_{RECALL}", f"{NEW}_{R_AUROC}"
    signs = [correlation(own, *columns)[0] < 0 for own in methods.values()]
    return sum(signs), len(signs)


def rows(folder: Path) -> list[Row]:
    """Return a row for every number that the published runs give."""
    runs = read_runs(folder)
    found: list[Row] = []
    for name, columns in CORRELATED.items():
        value, n = correlation(runs, *columns)
        found.append({"quantity": name, "value": value, "runs": n})
    negative, n = trade_offs(runs)
    found.append({"quantity": "figures 7 and 8, trade-offs", "value": negative, "of": n})
    found += [{"quantity": "three seeds", **row} for row in seeds_of(runs)]
    return found
