"""Example queries with their neighbours, as images of a few hundred kilobytes in all."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

from PIL import Image

from benchmarks.report.reading import Part
from laplace_metric.cli.pages import Picture, Strip

HEAVY, SIDE, QUALITY = 1_000, 96, 80


def compressed_strips(pictures: dict[str, Any]) -> dict[str, Any]:
    """The strips of a run with every picture made lighter."""
    return {
        kind: [
            {**one, "pictures": [{**p, "uri": compressed(p["uri"])} for p in one["pictures"]]}
            for one in strips
        ]
        for kind, strips in pictures.items()
    }


def compressed(uri: str) -> str:
    """A picture as WebP, no larger than it is shown, where that saves something."""
    if len(uri) < HEAVY or not uri.startswith("data:image/png;base64,"):
        return uri
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=QUALITY, method=6)
    made = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
    return min(made, uri, key=len)


TITLES = {
    "certain": ("Most certain", "nearest first"),
    "unsure": ("Least certain", "nearest first"),
    "credible": (
        "95 % credible sets: clear queries, then disputed ones",
        "some of the set; right: its angle, and how many images lie in it",
    ),
}


@dataclass(frozen=True)
class Gallery:
    """Strips of one method: a title, what stands beside the queries, the strips."""

    method: str
    strips: list[tuple[str, str, list[Strip]]]


def galleries(part: Part) -> list[Gallery]:
    """Of each method that has pictures."""
    return [Gallery(row["method"], _strips(row["pictures"])) for row in part.rows
            if row.get("pictures")]  # fmt: skip


def _strips(pictures: dict[str, Any]) -> list[tuple[str, str, list[Strip]]]:
    return [
        (*TITLES.get(kind, (kind, "")), [_strip(one) for one in strips])
        for kind, strips in pictures.items()
        if strips
    ]


def _strip(one: dict[str, Any]) -> Strip:
    pictures = tuple(Picture(p["uri"], p["label"], p["right"]) for p in one["pictures"])
    return Strip(one["uncertainty"], pictures)
