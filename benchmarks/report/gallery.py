"""Example queries with their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.report.reading import Part
from laplace_metric.cli.pages import Picture, Strip

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
