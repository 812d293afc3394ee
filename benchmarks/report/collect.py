"""From the cache to one JSON a protocol and a page: ``python -m benchmarks report``."""

from __future__ import annotations

import base64
import io
import json
import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.definitions import COMPARISON
from benchmarks.methods import METHODS
from benchmarks.protocols import PROTOCOLS
from benchmarks.records import RESULTS, Store, environment, work_folder
from benchmarks.report.glossary import metric
from benchmarks.report.page import render
from benchmarks.report.reading import Record
from benchmarks.report.statistics import Row, difference, leaders
from laplace_metric.errors import InputError
from laplace_metric.io import require_writable, write_atomically

REFERENCE = "laplace"
RECOVERY = RESULTS / "recovery.json"
HEAVY, SIDE, QUALITY = 1_000, 96, 80


def collect(store: Store, protocol: str, size: str) -> dict[str, Any]:
    """Rows without their replicates, the trials, and the comparisons that replicates allow."""
    rows = list(store.starting_with(protocol))
    if gone := sorted({row["method"] for row in rows} - METHODS.keys()):
        raise InputError(
            f"{store.folder} holds {protocol} runs of methods that are no more: {'; '.join(gone)}. "
            "Delete them, or use another --cache."
        )
    rows.sort(key=lambda row: (row["task"], list(METHODS).index(row["method"]), row["seed"]))
    tasks = dict.fromkeys(row["task"] for row in rows)
    environments = [row.pop("environment") for row in rows]
    return {
        "protocol": protocol,
        "size": size,
        "settings": rows[0]["size"] if rows else {},
        "environment": with_seconds(environments[0], rows) if rows else environment(),
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


def with_seconds(facts: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """Return the facts with the seconds of all fits and measurements, without the tuning."""
    costs = [(*row["cost"].values(), row.get("measuring")) for row in rows]
    return facts | {"seconds": round(sum(_seconds(part) for of in costs for part in of), 1)}


def _seconds(part: Any) -> float:
    return float(part.get("wall_seconds", 0.0)) if isinstance(part, dict) else 0.0


def compare(rows: Sequence[Row]) -> dict[str, Any]:
    """Per metric: the best method, those that the data cannot tell from it, paired differences."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    comparisons: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row["metrics"]):
        best, near = leaders(by_method, key, metric(key).direction >= 0)
        against = {
            name: _short(difference(by_method[REFERENCE], of, key))
            for name, of in by_method.items()
            if REFERENCE in by_method and name != REFERENCE
        }
        comparisons[key] = {"best": best, "leaders": near, f"{REFERENCE} minus": against}
    return comparisons


def _short(values: dict[str, float]) -> dict[str, float | None]:
    """Rounded; null where undefined, for JSON has no NaN."""
    return {name: round(x, 4) if math.isfinite(x) else None for name, x in values.items()}


def light(row: Row) -> Row:
    """A run without what is only needed to compare it, and with smaller images."""
    metrics = {
        name: {key: value for key, value in cell.items() if key != "replicates"}
        for name, cell in row["metrics"].items()
    }
    pictures = {
        kind: [
            {**one, "pictures": [{**p, "uri": compressed(p["uri"])} for p in one["pictures"]]}
            for one in strips
        ]
        for kind, strips in row["pictures"].items()
    }
    rest = {key: value for key, value in row.items() if key not in ("size", "protocol")}
    return {**rest, "pictures": pictures, "metrics": metrics}


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


def write(content: dict[str, Any], path: Path) -> None:
    """Compact JSON, a line for each run."""
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in content["rows"])
    head = json.dumps({k: v for k, v in content.items() if k != "rows"}, indent=1)
    write_atomically(path, f'{head[:-2]},\n"rows": [\n{rows}\n]\n}}\n')


def run(options: Namespace) -> None:
    """Collect unless told not to, write the page, and say what was written."""
    folder = options.json or RESULTS / options.size
    require_writable(options.out)
    if not options.from_json:
        collected(options.cache, options.size, folder, options.protocols or tuple(PROTOCOLS))
    page = render(list(records(folder)))
    write_atomically(options.out, page)
    print(f"{options.out}: {len(page.encode()) / 1e6:.2f} MB")


def collected(
    cache: Path, size: str, folder: Path, protocols: Sequence[str] = tuple(PROTOCOLS)
) -> None:
    """One JSON in ``folder`` for each of the protocols that has runs in the cache.

    Raises
    ------
    InputError
        If there is none.
    """
    store = Store(work_folder(cache, COMPARISON) / f"runs-{size}")
    of_protocol = {name: collect(store, name, size) for name in protocols}
    of_protocol = {name: record for name, record in of_protocol.items() if record["rows"]}
    if not of_protocol:
        raise InputError(
            f"{store.folder} holds no runs. Run `python -m benchmarks PROTOCOL` first."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in of_protocol.items():
        write(record, folder / f"{name}.json")
        print(f"{folder / name}.json: {len(record['rows'])} runs")


def records(folder: Path) -> Iterator[Record]:
    """The records of a folder in the order of the protocols; of the pages' own, recovery last.

    Raises
    ------
    InputError
        If the folder has none.
    """
    paths = [folder / f"{name}.json" for name in PROTOCOLS]
    existing = [path for path in paths if path.is_file()]
    if not existing:
        raise InputError(f"{folder} holds no record of {', '.join(PROTOCOLS)}.")
    known = [RECOVERY] if folder.resolve() == RESULTS / "small" and RECOVERY.is_file() else []
    for path in (*existing, *known):
        yield json.loads(path.read_text())
