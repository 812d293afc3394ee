"""From the cache to one JSON a protocol and a page: ``python -m benchmarks report``."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from benchmarks.protocols import PROTOCOLS
from benchmarks.records import RESULTS, Store
from benchmarks.report.collect import collect, write
from benchmarks.report.page import render
from benchmarks.report.reading import Record
from laplace_metric._utils.files import require_writable, write_atomically
from laplace_metric.errors import InputError

RECOVERY = RESULTS / "recovery.json"


def run(options: Namespace) -> None:
    """Collect unless told not to, write the page, and say what was written."""
    folder = options.json or RESULTS / options.size
    require_writable(options.out)
    if not options.from_json:
        collected(options.cache, options.size, folder)
    page = render(list(records(folder)))
    write_atomically(options.out, page)
    print(f"{options.out}: {len(page.encode()) / 1e6:.2f} MB")


def collected(cache: Path, size: str, folder: Path) -> None:
    """One JSON in ``folder`` for each protocol that has runs in the cache.

    Raises
    ------
    InputError
        If there is none.
    """
    store = Store(cache / f"runs-{size}")
    of_protocol = {name: collect(store, name, size) for name in PROTOCOLS}
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
    """The records of a folder in the order of the protocols, then that of known posteriors.

    Raises
    ------
    InputError
        If the folder has none.
    """
    paths = [folder / f"{name}.json" for name in PROTOCOLS]
    existing = [path for path in paths if path.is_file()]
    if not existing:
        raise InputError(f"{folder} holds no record of {', '.join(PROTOCOLS)}.")
    for path in (*existing, *([RECOVERY] if RECOVERY.is_file() else [])):
        yield json.loads(path.read_text())
