"""One JSON a protocol out of its runs: what the report and the pages are made of."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.methods import METHODS
from benchmarks.records import Store, environment
from benchmarks.report.glossary import metric
from benchmarks.report.image_compression import compressed_strips
from benchmarks.report.statistics import Row, difference, leaders
from laplace_metric._utils.files import write_atomically
from laplace_metric.errors import InputError

REFERENCE = "laplace"


def collect(store: Store, protocol: str, size: str) -> dict[str, Any]:
    """Rows without their replicates, the trials, and the comparisons that replicates allow."""
    order = list(METHODS)
    rows = list(store.starting_with(protocol))
    if gone := sorted({row["method"] for row in rows} - METHODS.keys()):
        raise InputError(
            f"{store.folder} holds {protocol} runs of methods that are no more: {'; '.join(gone)}. "
            "Delete them, or use another --cache."
        )
    rows.sort(key=lambda row: (row["task"], order.index(row["method"]), row["seed"]))
    tasks = dict.fromkeys(row["task"] for row in rows)
    environments = [row.pop("environment") for row in rows]
    return {
        "protocol": protocol,
        "size": size,
        "settings": rows[0]["size"] if rows else {},
        "environment": environments[0] if rows else environment(),
        "commits": sorted({one["git"] or "" for one in environments}),
        "comparisons": {
            task: compare([row for row in rows if row["task"] == task]) for task in tasks
        },
        "tuned": [
            {key: one[key] for key in ("task", "method", "tried")}
            for one in store.starting_with("tuned")
            if one["task"] in tasks and len(one["tried"]) > 1
        ],
        "rows": [light(row) for row in rows],
    }


def compare(rows: Sequence[Row]) -> dict[str, Any]:
    """Per metric: the best method, those that the data cannot tell from it, paired differences."""
    of = {name: [r for r in rows if r["method"] == name] for name in _names(rows)}
    return {
        key: _comparison(of, key) for key in dict.fromkeys(k for r in rows for k in r["metrics"])
    }


def _comparison(of: dict[str, list[Row]], key: str) -> dict[str, Any]:
    best, near = leaders(of, key, metric(key).direction >= 0)
    against = {
        name: _short(difference(of[REFERENCE], rows, key))
        for name, rows in of.items()
        if REFERENCE in of and name != REFERENCE
    }
    return {"best": best, "leaders": near, f"{REFERENCE} minus": against}


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows))


def _short(found: dict[str, float]) -> dict[str, float | None]:
    """Rounded; null where undefined, for JSON has no NaN."""
    return {name: round(x, 4) if math.isfinite(x) else None for name, x in found.items()}


def light(row: Row) -> Row:
    """A run without what is only needed to compare it."""
    kept = {key: value for key, value in row.items() if key not in ("size", "protocol")}
    kept["pictures"] = compressed_strips(row["pictures"])
    kept["metrics"] = {
        name: {key: value for key, value in found.items() if key != "replicates"}
        for name, found in row["metrics"].items()
    }
    return kept


def write(content: dict[str, Any], path: Path) -> None:
    """Compact JSON, a line for each run."""
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in content["rows"])
    head = json.dumps({k: v for k, v in content.items() if k != "rows"}, indent=1)
    write_atomically(path, f'{head[:-2]},\n"rows": [\n{rows}\n]\n}}\n')
