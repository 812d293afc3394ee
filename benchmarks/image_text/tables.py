"""Tables of the page of images and texts, from ``results/image_text.json``."""

from __future__ import annotations

from math import isfinite, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.records import RESULTS, markdown, read_record, thousandths

RECORD = "image_text"
REGRESSION = "ridge regression of the counts"


def _cells(rows: list[dict[str, Any]], method: str, *path: str) -> str:
    """Mean and standard error over seeds, or nothing where a method has no such number."""
    values = []
    for row in rows:
        value: Any = row if row["method"] == method else {}
        for key in path:
            value = value.get(key, {})
        values += [value] if isinstance(value, float) and isfinite(value) else []
    if not values:
        return ""
    if len(values) < 2:
        return thousandths(fmean(values))
    return f"{thousandths(fmean(values))} ± {thousandths(stdev(values) / sqrt(len(values)))}"


def _table(columns: dict[str, tuple[str, ...]], folder: Path) -> str:
    record = read_record(RECORD, folder)
    rows = [*record["rows"], record["regression"]]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [[m, *(_cells(rows, m, *path) for path in columns.values())] for m in methods]
    return markdown(["method", *columns], [line for line in lines if any(line[1:])])


def retrieval_table(folder: Path = RESULTS) -> str:
    """Test drawings, both ways."""
    ways = ("image to text", "text to image")
    names = [f"{way} {name}" for way in ways for name in ("r@1", "r@5")]
    columns: dict[str, tuple[str, ...]] = {name: ("test", name) for name in names}
    return _table(columns, folder)


def generality_table(folder: Path = RESULTS) -> str:
    """Spearman of ambiguity and log number of drawings."""
    names = ("spearman", "shuffled", "without frequency")
    parts = ("trained keywords", "new keywords")
    return _table({f"{part}: {name}": (part, name) for part in parts for name in names}, folder)


TABLES = {
    "image-text-retrieval": retrieval_table,
    "image-text-generality": generality_table,
}
