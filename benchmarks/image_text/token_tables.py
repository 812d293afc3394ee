"""Tables of encoders with uncertainty tokens, from ``results/image_text_tokens.json``."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS, markdown, read_record, thousandths

RECORD, FROZEN = "image_text_tokens", "image_text"
WAYS = tuple(
    f"{way} {name}"
    for way in ("image to text", "text to image")
    for name in ("r@1", "r@5", "map@r")
)
HIDDEN = ("0.0", "0.25", "0.5", "0.75", "0.9")


def _cell(row: dict[str, Any], *path: str | int) -> str:
    value: Any = row
    try:
        for key in path:
            value = value[key]
    except (KeyError, IndexError):
        return ""
    return thousandths(value) if isinstance(value, float) and isfinite(value) else ""


def _rows(folder: Path, columns: dict[str, tuple[str | int, ...]]) -> list[list[str]]:
    rows = read_record(RECORD, folder)["rows"]
    return [[row["method"], *(_cell(row, *path) for path in columns.values())] for row in rows]


def retrieval_table(folder: Path = RESULTS) -> str:
    """Test drawings, both ways; below, the same objectives on frozen encoders, of one seed."""
    columns: dict[str, tuple[str | int, ...]] = {name: ("test", name) for name in WAYS}
    columns |= {"training drawings: image to text r@1": ("train", "image to text r@1")}
    columns |= {"seconds": ("seconds",)}
    lines = _rows(folder, columns)
    for row in read_record(FROZEN, RESULTS)["rows"]:
        if row["seed"] == 0 and row["method"] in ("siglip", "prolip"):
            cells = [_cell(row, *path) for path in columns.values()]
            lines.append([f"{row['method']}, frozen encoders", *cells])
    return markdown(["method", *columns], lines)


def masking_table(folder: Path = RESULTS) -> str:
    """Spearman with the share of hidden patches, and ambiguity at each; keywords."""
    columns: dict[str, tuple[str | int, ...]] = {
        f"{name}: spearman": ("masking", f"{name} spearman")
        for name in ("ambiguity", "epistemic", "1/norm")
    }
    columns |= {f"tr S at {share}": ("masking", f"ambiguity at {share}") for share in HIDDEN}
    for part in ("trained keywords", "new keywords"):
        columns |= {f"{part}: spearman": (part, "spearman")}
    return markdown(["method", *columns], _rows(folder, columns))


def spread_table(folder: Path = RESULTS) -> str:
    """Loss, and spreads of means and variances, in some epochs."""
    rows = read_record(RECORD, folder)["rows"]
    last = len(rows[0]["losses"])
    epochs = sorted({1, min(3, last), last})
    columns: dict[str, tuple[str | int, ...]] = {
        f"loss, {epoch}": ("losses", epoch - 1) for epoch in epochs
    }
    for side in ("images", "texts"):
        for what in ("means", "trace", "variation"):
            for epoch in epochs:
                columns[f"{side}: {what}, {epoch}"] = ("spreads", side, epoch - 1, what)
    return markdown(["method", *columns], _rows(folder, columns))


def start_table(folder: Path = RESULTS) -> str:
    """What the first offset of the loss decides, on validation drawings."""
    starts = read_record(RECORD, folder)["starts"]
    columns: dict[str, tuple[str | int, ...]] = {
        "images: means": ("spreads", "images", -1, "means"),
        "texts: means": ("spreads", "texts", -1, "means"),
        **{name: ("validation", name) for name in WAYS},
    }
    lines = [
        [f"{row['first_b']:g}", *(_cell(row, *path) for path in columns.values())] for row in starts
    ]
    return markdown(["first b", *columns], lines)


TABLES = {
    "image-text-tokens": retrieval_table,
    "image-text-tokens-masking": masking_table,
    "image-text-tokens-spreads": spread_table,
    "image-text-tokens-starts": start_table,
}
