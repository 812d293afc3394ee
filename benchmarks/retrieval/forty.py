"""Forty guards of two sets of images: ``python -m benchmarks retrieval --pieces forty``.

Each random split has 1,000 items and 5,000 other images, which are asked. A ``Guard`` of 90 %, with
95 % confidence, over the pixels at half size is calibrated by its items alone. How much it answers
and how much of that is right stands beside the nearest item, which answers always. Up to one guard
in twenty may be below what it promises; 5,000 queries tell a share to within a per cent.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from benchmarks.datasets import load
from benchmarks.plots import Figure, forty_plot, headed
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import Guard, Rule
from laplace_metric.errors import LaplaceMetricWarning

SETS = {"fashion-mnist": "clothes", "kmnist": "Japanese characters"}
SPLITS, ITEMS, ASKED, PRECISION = 40, 1_000, 5_000, 0.9
Row = dict[str, Any]


def measured(name: str, splits: int, data: Any) -> list[Row]:
    """Return what is answered, and what is right, split by split."""
    images = load(name, "test", data)
    x = torch.as_tensor(images.images).float().reshape(-1, 1, 28, 28)
    x, y = nn.functional.avg_pool2d(x, 2).flatten(1), torch.as_tensor(images.labels).long()
    rows = []
    for seed in tqdm(range(splits), desc=name, disable=None):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        items, asked = order[:ITEMS], order[ITEMS : ITEMS + ASKED]
        guard = Guard(x[items], y[items], precision=PRECISION)
        answers, truth = guard.ask(x[asked]), y[asked].numpy()
        right = answers.label[answers.answered] == truth[answers.answered]
        always = guard.index.ask(x[asked], Rule.at(0, alpha=None)).label == truth
        rows.append(
            {
                "set": name,
                "seed": seed,
                "answered": float(answers.answered.mean()),
                "right": float(right.mean()),
                "always": float(always.mean()),
            }
        )
    return rows


def run(options: Namespace) -> None:
    """Measure and write ``forty.json``."""
    splits = 2 if options.size == "smoke" else SPLITS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        rows = [row for name in SETS for row in measured(name, splits, options.data)]
    write_record("forty", {"target": PRECISION, "rows": rows}, folder_of(options))
    print(table(folder_of(options)))


def kept(rows: list[Row], target: float) -> tuple[int, int]:
    """Return how many guards keep the target, and of how many."""
    return sum(row["right"] >= target for row in rows), len(rows)


def table(folder: Any = None) -> str:
    """Means over the splits, and how many guards keep what they guarantee."""
    record = read_record("forty") if folder is None else read_record("forty", folder)
    lines = []
    for name, words in SETS.items():
        rows = [row for row in record["rows"] if row["set"] == name]
        means = [
            sum(row[key] for row in rows) / len(rows) for key in ("always", "answered", "right")
        ]
        number, of = kept(rows, record["target"])
        lowest = min(row["right"] for row in rows)
        cells = [f"{mean:.1%}" for mean in means]
        lines.append([words, *cells, f"{lowest:.1%}", f"{number} of {of}"])
    header = ["images", "right, every query answered", "guard answers", "right, of its answers"]
    return markdown([*header, "the worst guard", "guards of 90 % and more"], lines)


def forty_figure(record: Row) -> Figure:
    """Draw every guard, and the search that always answers."""
    guards, plain = {}, {}
    for name, words in SETS.items():
        rows = [row for row in record["rows"] if row["set"] == name]
        guards[words] = [(row["answered"], row["right"]) for row in rows]
        plain[words] = [(1.0, row["always"]) for row in rows]
    note = (
        f"Random splits: {ITEMS:,} items, which calibrate, and {ASKED:,} queries. A guard answers "
        "with a label, or abstains.\nOf guards with 95 % confidence one in twenty may break its "
        "guarantee."
    )
    return headed(forty_plot(guards, plain, record["target"]), "Does a guard keep 90 %?", note)


TABLES = {"retrieval-forty": table}
