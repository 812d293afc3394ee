"""``laplace-metric demo``: the commands that a user would run, on handwritten digits."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table

from laplace_metric import datasets
from laplace_metric.cli._output import require_outputs
from laplace_metric.io import write_atomically

PRECISION = 0.95
CALIBRATION = 500
"""Digits of the train split that calibrate; the others are the gallery."""
SHOWN = 3
"""Queries of each kind in the terminal."""


def demo(options: argparse.Namespace) -> None:
    """Run the commands in a temporary folder; only the report stays."""
    require_outputs([options.output])
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        _write_images(folder)

        def run(*words: str) -> None:
            shown = " ".join(word.replace(f"{folder}/", "") for word in words)
            console.print(f"$ laplace-metric {shown}", style="dim", highlight=False, soft_wrap=True)
            _run([*words, "--quiet"])

        index, posterior = str(folder / "index"), str(folder / "posterior")
        digits, queries = str(folder / "digits"), str(folder / "queries")
        others, page = str(folder / "photographs"), str(folder / "report.html")
        # Pixels stand in for a trained embedder, so that nothing needs to be downloaded.
        model = ("--model", "torch.nn:Flatten", "--no-cache")
        run("fit", digits, *model, "--head", "append", "--size", "8", "--output", posterior)
        calibrate = ("--calibrate", str(folder / "calibration"))
        run("index", digits, "--posterior", posterior, *calibrate, *model, "--output", index)
        found = {}
        for kind, source in {"digit": queries, "photograph": others}.items():
            table = folder / f"{kind}.json"
            wanted = ("-k", "1", "--precision", str(PRECISION), "--output", str(table))
            run("search", index, source, *wanted, *model)
            found[kind] = _rows(json.loads(table.read_text()))
        shown = ("--open-set", others, "--data", digits)
        run("report", index, queries, *shown, *model, "--output", page)
        # The folder is gone when the page is read: its name would lead nowhere.
        write_atomically(options.output, Path(page).read_text().replace(f"{folder}/", ""))
    console.print(_table(found))
    console.print(_sentence(found), highlight=False)
    console.print(f"wrote {options.output}: every number, with pictures", soft_wrap=True)


def _run(words: list[str]) -> None:
    from laplace_metric.cli import main
    from laplace_metric.errors import LaplaceMetricError

    if main(words) != 0:
        raise LaplaceMetricError(f"the demo's step {words[0]!r} failed: see above.")


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


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the true class to the nearest item of each query: the folder that the query lies in."""
    return [{**row, "truth": row["query"].split("/")[0]} for row in rows]


def _right(row: dict[str, Any]) -> bool:
    return bool(row["label"] == row["truth"])


def _table(found: dict[str, list[dict[str, Any]]]) -> Table:
    """Return some queries of each kind: right, abstained, wrong without abstention, unknown."""
    digits, photographs = found["digit"], found["photograph"]
    answered = [row for row in digits if row["decision"] == "answer"]
    left_out = [row for row in digits if row["decision"] != "answer"]
    kinds = (
        ("a digit", [row for row in answered if _right(row)]),
        ("a digit, answered wrongly", [row for row in answered if not _right(row)]),
        ("a digit, not answered", [row for row in left_out if _right(row)]),
        ("a digit that would be wrong", [row for row in left_out if not _right(row)]),
        ("a photograph", photographs),
    )
    table = Table("query", "nearest item", "match", "decision", box=None)
    for title, rows in kinds:
        for row in rows[:: max(1, len(rows) // SHOWN)][:SHOWN]:  # sorted by class: spread
            match = f"{row['match_probability']:.3f}"
            table.add_row(f"{title} ({row['truth']})", row["label"], match, row["decision"])
    return table


def _sentence(found: dict[str, list[dict[str, Any]]]) -> str:
    digits, photographs = found["digit"], found["photograph"]
    answered = [row for row in digits if row["decision"] == "answer"]
    right, all_right = sum(map(_right, answered)), sum(map(_right, digits))
    let_in = sum(row["decision"] == "answer" for row in photographs)
    return (
        f"Guaranteed: {PRECISION:.0%} of the answers are right. Found: {len(answered)} of "
        f"{len(digits)} new digits answered, {right} of them right ({right / len(answered):.1%}). "
        f"Without abstention: {all_right} of {len(digits)} right "
        f"({all_right / len(digits):.1%}), and all {len(photographs)} photographs answered; with "
        f"it {let_in} of them."
    )
