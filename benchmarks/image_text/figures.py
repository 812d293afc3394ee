"""The drawings with the least and the most ambiguity, from ``results/image_text.json``.

``python -m benchmarks image-text --pieces figures --data DIR``
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from benchmarks.datasets import load
from benchmarks.image_text.degraded import SIDE
from benchmarks.image_text.measure import OURS, SEEDS
from benchmarks.image_text.tables import RECORD
from benchmarks.plots import Figure, ImageStrip, save_png, strips_plot
from benchmarks.records import figures_of, folder_of, read_record

EACH = 8
"""Drawings of a strip."""


def drawings_figure(row: dict[str, Any], data: str | None) -> Figure:
    """Draw the test drawings with the least and the most ambiguity."""
    drawings = {int(key): value for key, value in row["drawings"].items()}
    order = sorted(drawings, key=lambda key: drawings[key])
    images = load("emoji", "test", data, size=SIDE).images.permute(0, 2, 3, 1).numpy()
    strips = [
        ImageStrip(title, [images[k] for k in rows], [f"{drawings[k]:.3f}" for k in rows])
        for title, rows in (
            ("least ambiguous (below: learnt variance, trace)", order[:EACH]),
            ("most ambiguous", order[-EACH:]),
        )
    ]
    return strips_plot(strips, "Which drawings are the least and the most ambiguous?", 1.5)


def run(options: Namespace) -> None:
    """Draw the record."""
    rows = read_record(RECORD, folder_of(options))["rows"]
    (row,) = [r for r in rows if r["method"] == OURS and r["seed"] == SEEDS[0]]
    save_png(drawings_figure(row, options.data), figures_of(options) / "image-text-drawings.png")
