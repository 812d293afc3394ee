"""Example queries, with their pictures made light enough for one page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

from PIL import Image

from benchmarks.report.reading import Part
from laplace_metric.report.pictures import Picture, Strip

FIRST = "laplace"
HEAVY, SIDE, QUALITY = 1_000, 96, 80
TITLES = {
    "certain": ("Most certain", "nearest first"),
    "unsure": ("Least certain", "nearest first"),
    "credible": ("95 % credible sets: clear queries, then disputed ones", "some of the set"),
}


@dataclass(frozen=True)
class Gallery:
    """Strips of one method: a title, what stands beside the queries, the strips."""

    method: str
    strips: list[tuple[str, str, list[Strip]]]


def gallery(part: Part) -> Gallery | None:
    """Of Laplace; of the first method with pictures where it has none."""
    there = {row["method"]: row["pictures"] for row in part.rows if row.get("pictures")}
    if not there:
        return None
    method = FIRST if FIRST in there else next(iter(there))
    found = [
        (*TITLES.get(kind, (kind, "")), [_strip(one) for one in strips])
        for kind, strips in there[method].items()
        if strips
    ]
    return Gallery(method, found)


def _strip(one: dict[str, Any]) -> Strip:
    pictures = tuple(Picture(lighter(p["uri"]), p["label"], p["right"]) for p in one["pictures"])
    return Strip(one["uncertainty"], pictures)


def lighter(uri: str) -> str:
    """A picture as WebP, no larger than it is shown, where that saves something."""
    if len(uri) < HEAVY or not uri.startswith("data:image/png;base64,"):
        return uri
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=QUALITY, method=6)
    made = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
    return min(made, uri, key=len)
