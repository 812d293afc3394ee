"""Run the portion of a record, in a process of its own: ``python -m benchmarks.confirm.again``.

The record goes to the folder that ``LAPLACE_METRIC_RESULTS`` names.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.confirm.portions import PORTIONS
from benchmarks.methods import Entry
from benchmarks.methods.entry import Settings
from benchmarks.protocols import PROTOCOLS
from benchmarks.protocols.runner import Runner
from benchmarks.records import RESULTS, read_record, write_record
from benchmarks.registry import COMMANDS, fix_kernels, parser, run_piece
from benchmarks.sizes import SMALL
from benchmarks.tasks import Task, Workspace
from benchmarks.whole_run import WholePiece, piece_of
from laplace_metric.errors import LaplaceMetricWarning


def run_again(name: str, cache: Path, data: str | None) -> None:
    """Run the portion of the record ``name``."""
    piece = piece_of(name)
    if piece.tasks:
        return compare_again(name, cache, data)
    command, *words = piece.words.split()
    options = parser(command).parse_args(words)
    options.cache, options.data = cache, data
    for option, value in PORTIONS[name].options.items():
        setattr(options, option, value)
    narrow(piece, name)
    pieces = COMMANDS[command].pieces
    (one,) = getattr(options, "pieces", None) or pieces
    run_piece(pieces[one], options)
    return None


def narrow(piece: WholePiece, name: str) -> None:
    """Leave of the constants of a piece what the portion of a record needs."""
    module = import_module(piece.module)
    for constant, change in PORTIONS[name].narrowed.items():
        setattr(module, constant, change(getattr(module, constant)))


class _Settled(Runner):
    """Takes the settings of a record instead of searching them."""

    recorded: dict[str, Settings]

    def choice(self, entry: Entry, task: Task, seed: int) -> Settings:
        """Return the recorded settings of a method."""
        if entry.name in self.recorded:
            return self.recorded[entry.name]
        return super().choice(entry, task, seed)


def compare_again(name: str, cache: Path, data: str | None) -> None:
    """Measure one task and seed of a protocol, by the methods that are not trained anew."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    fix_kernels()
    record = read_record(name, RESULTS / "small")
    rows = PORTIONS[name].rows(record, record)
    task, seed = rows[0]["task"], rows[0]["seed"]
    runner = _Settled(Workspace(data, cache, SMALL, progress=False))
    runner.recorded = _settings(
        row for row in record["rows"] if (row["task"], row["seed"]) == (task, seed)
    )
    wanted = {row["method"] for row in rows}
    jobs = [
        job
        for job in runner.jobs([PROTOCOLS[name]])
        if (job.task, job.seed) == (task, seed) and job.method in wanted
    ]
    runner.run(jobs)
    found = [runner.store.read(name, job.task, job.method, job.seed) for job in jobs]
    kept = [{k: v for k, v in row.items() if k in rows[0]} for row in found]
    write_record(name, {"rows": [_light(row) for row in kept]})


def _settings(rows: Iterable[dict[str, Any]]) -> dict[str, Settings]:
    return {row["method"]: row["settings"] for row in rows}


def _light(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as it is collected, without the replicates of its numbers."""
    metrics = {
        name: {key: value for key, value in cell.items() if key != "replicates"}
        for name, cell in row["metrics"].items()
    }
    return {**row, "metrics": metrics}


if __name__ == "__main__":
    record_name, cache_folder, *data_folder = sys.argv[1:]
    run_again(record_name, Path(cache_folder), data_folder[0] if data_folder else None)
