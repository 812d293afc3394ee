"""Figures of the page, from ``results/image_text.json`` and the drawings themselves.

``python -m benchmarks image-text --pieces figures --data DIR``
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from benchmarks.datasets import load
from benchmarks.image_text.degraded import SIDE
from benchmarks.image_text.measure import OURS, SEEDS
from benchmarks.image_text.tables import RECORD
from benchmarks.plots import (
    Figure,
    ImageStrip,
    TextSizes,
    generality_plot,
    headed,
    save_figure,
    save_png,
    severity_plot,
    strips_plot,
)
from benchmarks.records import figures_of, folder_of, read_record

EACH = 8
"""Drawings of a strip."""
PICTURES = ("image-text-drawings", "image-text-ways")
"""Of pixels: no SVG."""


def generality_figure(row: dict[str, Any]) -> Figure:
    """Trace of a text against the drawings that it names."""
    groups = row["examples"]["texts"]
    figure = generality_plot(
        [TextSizes(title, **of, spearman=row[title]["spearman"]) for title, of in groups.items()]
    )
    title = "Do keywords that name more drawings learn the larger variance?"
    note = "Heads with regions, one seed. Counts are spread a little, to part the dots."
    return headed(figure, title, note)


def drawings_figure(row: dict[str, Any], data: str | None) -> Figure:
    """The test drawings with the least and the most ambiguity."""
    drawings = {int(key): value for key, value in row["examples"]["drawings"].items()}
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


def ways_figure(row: dict[str, Any], data: str | None) -> Figure:
    """From the mean of all keywords to a drawing, through the keywords on the way."""
    ways = row["examples"]["ways"]
    images = load("emoji", "test", data, size=SIDE).images.permute(0, 2, 3, 1).numpy()
    return strips_plot(
        [
            ImageStrip(
                "from top to bottom: keywords passed on the straight way from their mean",
                [images[int(key)] for key in ways],
                ["\n".join(way) for way in ways.values()],
            )
        ],
        "What lies between the mean of all keywords and a drawing?",
        height=2.35,
        lines=max(map(len, ways.values())),
    )


def severity_figure(row: dict[str, Any]) -> Figure:
    """Means over drawings, level by level."""
    figure = severity_plot({kind: of["by level"] for kind, of in row["severity"].items()})
    title = "Does a drawing get more uncertain as it disappears?"
    note = "Means over the test drawings, heads with regions, one seed: spreads are in the table."
    return headed(figure, title, note)


def run(options: Namespace) -> None:
    """All of them."""
    folder = folder_of(options)
    rows = read_record(RECORD, folder)["rows"]
    (row,) = [r for r in rows if r["method"] == OURS and r["seed"] == SEEDS[0]]
    figures = {
        "image-text-generality": generality_figure(row),
        "image-text-drawings": drawings_figure(row, options.data),
        "image-text-ways": ways_figure(row, options.data),
        "image-text-severity": severity_figure(row),
    }
    for name, figure in figures.items():
        path = figures_of(options) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        (save_png if name in PICTURES else save_figure)(figure, path)
        print(path.name)
