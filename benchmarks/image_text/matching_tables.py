"""Tables of what an index of images and texts promises, from ``image_text_matching.json``."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.records import RESULTS, markdown, read_record, thousandths

RECORD = "image_text_matching"
WAYS = ("known text to image", "new text to image", "image to text")
CALIBRATION = ("ece", "ece of draws", "ece, 10 pairs", "brier", "auroc")
PRECISIONS = ("0.5", "0.7", "0.9")


def _cell(rows: list[dict[str, Any]], way: str, name: str) -> str:
    """Mean and standard deviation over seeds."""
    values = [row[way][name] for row in rows if name in row[way]]
    if not values:
        return ""
    spread = f" ± {thousandths(stdev(values))}" if len(values) > 1 else ""
    return f"{thousandths(fmean(values))}{spread}"


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_record(RECORD, folder)["rows"]
    return rows


def calibration_table(folder: Path = RESULTS) -> str:
    """Match probability against the probability of the training."""
    rows = _rows(folder)
    lines = [
        [way, score, *(_cell(rows, way, f"{score} {name}") for name in CALIBRATION)]
        for way in WAYS
        for score in ("match probability", "raw")
    ]
    return markdown(["", "", *CALIBRATION], lines)


def promise_table(folder: Path = RESULTS) -> str:
    """How often a precision can be promised, how often it is kept, how much it answers."""
    rows, lines = _rows(folder), []
    for way in WAYS:
        for target in PRECISIONS:
            names = [f"precision {target} {name}" for name in ("made", "kept", "answered")]
            lines.append([way, target, *(_cell(rows, way, name) for name in names)])
    return markdown(["", "precision promised", "made", "kept", "answered"], lines)


def unknown_table(folder: Path = RESULTS) -> str:
    """Shares of what is called unknown, and sets."""
    names = {
        "queries asked": "queries",
        "with a match": "with a match",
        "nearest is a match": "right",
        "unknown, with a match": "called unknown, with a match",
        "without": "called unknown, without a match",
        "photographs": "called unknown, photographs",
        "AUROC of photographs": "photographs p auroc",
        "sets, 80 %: coverage": "sets 0.8 coverage",
        "size": "sets 0.8 size",
    }
    rows = _rows(folder)
    lines = [[way, *(_cell(rows, way, name) for name in names.values())] for way in WAYS]
    return markdown(["", *names], lines)


MATCHING_TABLES = {
    "image-text-matching": calibration_table,
    "image-text-promises": promise_table,
    "image-text-unknown": unknown_table,
}
