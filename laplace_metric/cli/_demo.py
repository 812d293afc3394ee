"""``laplace-metric demo``: the commands that a user would run, on handwritten digits."""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table

from laplace_metric import datasets
from laplace_metric.calibration.rules._answers import UNCERTAIN, UNFAMILIAR
from laplace_metric.cli import main
from laplace_metric.cli._output_paths import require_outputs
from laplace_metric.errors import LaplaceMetricError
from laplace_metric.io import write_atomically

PRECISION = 0.95
CALIBRATION = 500
"""Digits of the train split that calibrate; the others are the gallery."""
SHOWN = 3
"""Queries of each outcome in the terminal."""


def demo(options: argparse.Namespace) -> None:
    """Run the commands in a temporary folder; only the report stays."""
    require_outputs([options.output])
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        _write_images(folder)

        def run(command: str) -> None:
            shown = command.replace("@/", "")
            console.print(f"$ laplace-metric {shown}", style="dim", highlight=False, soft_wrap=True)
            words = [word.replace("@", str(folder)) for word in command.split()]
            if main([*words, "--quiet"]) != 0:
                raise LaplaceMetricError(f"the demo's step {words[0]!r} failed: see above.")

        # Pixels stand in for a trained embedder, so that nothing needs to be downloaded.
        model = "--model torch.nn:Flatten"
        run(f"fit @/digits {model} --head append --size 8 --output @/posterior")
        index = "--calibrate @/calibration --output @/index"
        run(f"index @/digits --posterior @/posterior {index} {model}")
        found = {}
        for kind, place in {"digit": "queries", "photograph": "photographs"}.items():
            wanted = f"-k 1 --precision {PRECISION} --output @/{kind}.json"
            run(f"search @/index @/{place} {wanted} {model}")
            found[kind] = _judged(folder / f"{kind}.json")
        more = "--open-set @/photographs --data @/digits --output @/report.html"
        run(f"report @/index @/queries {more} {model}")
        # The folder is gone when the page is read: its name would lead nowhere.
        page = (folder / "report.html").read_text().replace(f"{folder}/", "")
        write_atomically(options.output, page)
    picked = f"Up to {SHOWN} queries of each outcome, so that rare errors are shown, too:"
    console.print(picked, _table(found), sep="\n", highlight=False)
    console.print(_sentence(found), highlight=False)
    console.print(f"wrote {options.output}: queries in pictures, and every number", soft_wrap=True)


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


def _table(found: dict[str, list[dict[str, Any]]]) -> Table:
    """Return some queries of each kind: answered, abstained, unknown; right or wrong."""
    table = Table("query", "label", "probability", "answered", box=None)
    for kind, rows in found.items():
        for reason, right in product(("", UNCERTAIN, UNFAMILIAR), (True, False)):
            some = [r for r in rows if (r["reason"], r["right"]) == (reason, right)]
            for row in some[:: max(1, len(some) // SHOWN)][:SHOWN]:  # sorted by class: spread
                p, query = f"{row['label_probability']:.3f}", f"a {kind} ({row['truth']})"
                told = reason or f"yes, {'right' if right else 'wrong'}"
                table.add_row(query, row["label"], p, told)
    return table


def _sentence(found: dict[str, list[dict[str, Any]]]) -> str:
    digits, photographs = found["digit"], found["photograph"]
    n, answered = len(digits), [row for row in digits if row["answered"]]
    right, all_right = (sum(row["right"] for row in some) for some in (answered, digits))
    let_in = sum(row["answered"] for row in photographs)
    return (
        f"Guaranteed: {PRECISION:.0%} of the answers are right. Found: {len(answered)} of {n} new "
        f"digits answered, {right} of them right ({right / len(answered):.1%}). Without "
        f"abstention: {all_right} of {n} right ({all_right / n:.1%}), and all {len(photographs)} "
        f"photographs answered; with it {let_in} of them."
    )
