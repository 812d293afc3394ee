"""Two processes that write to one folder, and a third that reads it meanwhile."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

from laplace_metric.errors import LaplaceMetricError
from tests.damage.processes import child, ended
from tests.damage.writers import Writer

WRITES = 5


def race(writer: Writer, place: Path, trials: int) -> dict[str, object]:
    """A row of the table: what two writers were told, what the reader saw, what is left."""
    folder, done = place / "value", place / "done"
    names = ("trials", "writes", "refused", "unnamed", "reads", "failed", "wrong", "lost")
    row = dict.fromkeys(names, 0)
    for _ in range(trials):
        _trial(writer, folder, done, row)
    return {"writer": writer.name, **row}


def _trial(writer: Writer, folder: Path, done: Path, row: dict[str, int]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    values = []
    for version in (1, 0):
        writer.write(folder, version)
        values.append(writer.read(folder))
    if writer.resumes:
        shutil.rmtree(folder)
    done.unlink(missing_ok=True)
    ours, end = os.pipe()
    writing = [child(partial(_writes, writer, folder, version, end)) for version in (0, 1)]
    reading = (
        [child(partial(_reads, writer, folder, values, done, end))] if not writer.resumes else []
    )
    codes = [ended(pid) for pid in writing]
    done.touch()
    codes += [ended(pid) for pid in reading]
    os.close(end)
    with os.fdopen(ours) as lines:
        for line in lines:
            outcome, *more = line.split(maxsplit=1)
            row[outcome] += 1
            if more:
                print(f"{writer.name}: {line.strip()}", flush=True)
    row["trials"] += 1
    row["unnamed"] += sum(code != 0 for code in codes)
    try:
        row["lost"] += writer.read(folder) not in values
    except Exception as error:
        print(f"{writer.name}: lost: {error!r}", flush=True)
        row["lost"] += 1


def _writes(writer: Writer, folder: Path, version: int, end: int) -> None:
    for _ in range(1 if writer.resumes else WRITES):
        try:
            writer.write(folder, version)
            os.write(end, b"writes\n")
        except LaplaceMetricError as error:
            shown = repr(error).replace("\n", " ")
            os.write(end, f"refused {shown:.300}\n".encode())


def _reads(writer: Writer, folder: Path, values: list[str], done: Path, end: int) -> None:
    failed = 0
    for _ in range(5000):  # what it says is read at the end, and must fit into the pipe
        if done.exists() or failed == 20:
            break
        try:
            os.write(end, b"reads\n" if writer.read(folder) in values else b"wrong\n")
        except Exception as error:
            failed += 1
            shown = repr(error).replace("\n", " ")
            os.write(end, f"failed {shown:.300}\n".encode())
