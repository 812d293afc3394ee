"""``laplace-metric demo``: the commands that a user would run, on handwritten digits."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from laplace_metric import datasets
from laplace_metric.calibration.rules._answers import UNCERTAIN, UNFAMILIAR
from laplace_metric.cli import main
from laplace_metric.cli._examples import evenly
from laplace_metric.cli._output_paths import discard, require_outputs
from laplace_metric.errors import InputError, LaplaceMetricError

PRECISION = 0.95
CALIBRATION = 500
"""Digits of the train split that calibrate; the others are the gallery."""
SHOWN = 20
"""Queries in the terminal."""
RIGHT, WRONG = "answered, right", "answered, wrong"
OUTCOMES = RIGHT, WRONG, UNCERTAIN, UNFAMILIAR


def demo(options: argparse.Namespace) -> None:
    """Run the commands in a new folder, which keeps the images, the results and the report.

    Raises
    ------
    InputError
        If the folder exists, or cannot be made.
    """
    folder: Path = options.output
    if folder.exists() or folder.is_symlink():
        raise InputError(
            f"{folder} exists, and the demo replaces nothing: remove it, or give another --output."
        )
    require_outputs([folder])
    try:
        _run(folder)
    except BaseException:  # Ctrl-C, too: half of a demo would be in the way of the next
        discard(folder)
        raise


def _run(folder: Path) -> None:
    console = Console()
    _write_images(folder)
    place = {
        name: str(folder / name)
        for name in ("digits", "calibration", "queries", "photographs", "posterior", "index")
    }
    page = str(folder / "report.html")

    def run(*words: str) -> None:
        # Pixels stand in for a trained embedder, so that nothing needs to be downloaded.
        words = (*words, "--model", "torch.nn:Flatten", "--overwrite")
        shown = f"$ laplace-metric {shlex.join(words)}"
        console.print(shown, style="dim", highlight=False, markup=False, soft_wrap=True)
        if main([*words, "--quiet"]) != 0:
            raise LaplaceMetricError(f"the demo's step {words[0]!r} failed: see above.")

    layer = "--head", "append", "--size", "8"
    run("fit", place["digits"], *layer, "--output", place["posterior"])
    made = "--posterior", place["posterior"], "--calibrate", place["calibration"]
    run("index", place["digits"], *made, "--output", place["index"])
    found = {}
    for kind, name in {"digit": "queries", "photograph": "photographs"}.items():
        answers = folder / f"{name}.json"
        wanted = "-k", "1", "--precision", f"{PRECISION}", "--output", str(answers)
        run("search", place["index"], place[name], *wanted)
        found[kind] = _judged(answers)
    seen = "--open-set", place["photographs"], "--data", place["digits"]
    run("report", place["index"], place["queries"], *seen, "--output", page)
    n = sum(map(len, found.values()))
    console.print(
        "What became of the queries:",
        _counts(found),
        f"{SHOWN} of the {n} queries, each outcome in its proportion:",
        _table(found),
        sep="\n",
        highlight=False,
    )
    console.print(_sentence(found), highlight=False)
    told = (
        f"wrote {page}: queries in pictures, and every number. {folder} keeps images and results; "
        "the commands above can be repeated from here as they stand."
    )
    console.print(told, highlight=False, markup=False, soft_wrap=True)


def _write_images(folder: Path) -> None:
    """Write scikit-learn's digits and patches of photographs as PNG files by class."""
    train, test = datasets.load("digits"), datasets.load("digits", "test")
    first = len(train) - CALIBRATION
    others = datasets.load("photographs", "test", limit=200)
    for name, images, rows in (
        ("digits", train, range(first)),
        ("calibration", train, range(first, len(train))),
        ("queries", test, range(len(test))),
        ("photographs", others, range(len(others))),
    ):
        for row in rows:
            path = folder / name / images.class_names[int(images.labels[row])] / f"{row:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = (images.pixels(slice(row, row + 1))[0, 0] * 255).round().byte()
            Image.fromarray(pixels.numpy()).save(path)


def _judged(path: Path) -> list[dict[str, Any]]:
    """Add to each query its true class, the folder that it lies in, and whether it is right."""
    rows = json.loads(path.read_text())
    truths = [row["query"].split("/")[0] for row in rows]
    return [
        {**row, "truth": truth, "right": row["label"] == truth}
        for row, truth in zip(rows, truths, strict=True)
    ]


def _outcome(row: dict[str, Any]) -> str:
    """Return the reason of an abstention, or whether the answer is right."""
    return row["reason"] or (RIGHT if row["right"] else WRONG)


def _counts(found: dict[str, list[dict[str, Any]]]) -> Table:
    """Return how many queries of each kind had each outcome."""
    table = Table("", *OUTCOMES, box=None)
    for kind, rows in found.items():
        counts = Counter(map(_outcome, rows))
        cells = [f"{counts[one]} ({counts[one] / max(1, len(rows)):.1%})" for one in OUTCOMES]
        table.add_row(f"{len(rows)} {kind}s", *cells)
    return table


def _table(found: dict[str, list[dict[str, Any]]]) -> Table:
    """Return some of the queries, so many of each kind and outcome as its share of all."""
    groups = [
        (kind, outcome, [row for row in rows if _outcome(row) == outcome])
        for kind, rows in found.items()
        for outcome in OUTCOMES
    ]
    table = Table("query", "label", "probability", "outcome", box=None)
    for (kind, outcome, rows), n in zip(
        groups, in_proportion([len(rows) for _, _, rows in groups], SHOWN), strict=True
    ):
        for place in evenly(len(rows), n) if n else []:  # sorted by class: spread
            row = rows[place]
            query = f"a {kind} ({row['truth']})"
            table.add_row(query, row["label"], f"{row['label_probability']:.3f}", outcome)
    return table


def in_proportion(sizes: list[int], most: int) -> list[int]:
    """Return how many to show of each of some groups, at most so many, by largest remainders.

    Examples
    --------
    >>> in_proportion([450, 9, 41, 200], 20)
    [13, 0, 1, 6]
    >>> in_proportion([2, 1], 20)
    [2, 1]
    """
    total = sum(sizes)
    if total <= most:
        return list(sizes)
    exact = np.array(sizes) * most / total
    shown = np.floor(exact).astype(int)
    shown[np.argsort(shown - exact, kind="stable")[: most - shown.sum()]] += 1
    return [int(n) for n in shown]


def _sentence(found: dict[str, list[dict[str, Any]]]) -> str:
    digits, photographs = found["digit"], found["photograph"]
    n, answered = len(digits), [row for row in digits if row["answered"]]
    right, all_right = (sum(row["right"] for row in some) for some in (answered, digits))
    let_in = sum(row["answered"] for row in photographs)
    return (
        f"Guaranteed with 95% confidence: {PRECISION:.0%} of the answers are right. "
        f"Found: {len(answered)} of {n} new "
        f"digits answered, {right} of them right ({right / len(answered):.1%}). Without "
        f"abstention: {all_right} of {n} right ({all_right / n:.1%}), and all {len(photographs)} "
        f"photographs answered; with it {let_in} of them."
    )
