"""``python -m benchmarks report``: from the cache to JSON and a page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.engine.store import Store
from benchmarks.protocols import PROTOCOLS
from benchmarks.records import RESULTS
from benchmarks.report.collect import collect, write
from benchmarks.report.page import render
from benchmarks.report.reading import Record
from benchmarks.sizes import SIZES
from laplace_metric._utils.files import require_writable, write_atomically
from laplace_metric.errors import InputError

RECOVERY = RESULTS / "recovery.json"


def main(arguments: Sequence[str]) -> int:
    """Collect unless told not to, write the page, and say what was written."""
    options = parser().parse_args(arguments)
    folder = options.json or RESULTS / options.size
    try:
        require_writable(options.out)
        if not options.from_json:
            collected(options.cache, options.size, folder)
        page = render(list(records(folder)))
    except InputError as error:
        print(f"error: {error}")
        return 2
    write_atomically(options.out, page)
    print(f"{options.out}: {len(page.encode()) / 1e6:.2f} MB")
    return 0


def collected(cache: Path, size: str, folder: Path) -> None:
    """One JSON in ``folder`` for each protocol that has runs in the cache."""
    store = Store(cache / f"runs-{size}")
    found = {name: collect(store, name, size) for name in PROTOCOLS}
    found = {name: record for name, record in found.items() if record["rows"]}
    if not found:
        raise InputError(
            f"{store.folder} holds no runs. Run `python -m benchmarks PROTOCOL` first."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in found.items():
        write(record, folder / f"{name}.json")
        print(f"{folder / name}.json: {len(record['rows'])} runs")


def records(folder: Path) -> Iterator[Record]:
    """The records of a folder in the order of the protocols, then that of known posteriors."""
    paths = [folder / f"{name}.json" for name in PROTOCOLS]
    there = [path for path in paths if path.is_file()]
    if not there:
        raise InputError(f"{folder} holds no record of {', '.join(PROTOCOLS)}.")
    for path in (*there, *([RECOVERY] if RECOVERY.is_file() else [])):
        yield json.loads(path.read_text())


def parser() -> argparse.ArgumentParser:
    """Its options."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks report",
        description="Collect finished runs into one JSON a protocol, and make one page of them.",
    )
    found.add_argument("--size", choices=SIZES, default="smoke")
    found.add_argument("--cache", type=Path, default=Path("benchmark-cache"))
    found.add_argument("--out", type=Path, default=Path("report.html"), help="the page")
    found.add_argument(
        "--json", type=Path, metavar="FOLDER", help="default: benchmarks/results/<size>"
    )
    found.add_argument("--from-json", action="store_true", help="only the page, from FOLDER")
    return found
