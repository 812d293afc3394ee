"""kill -9 at the n-th change of a file, and at random times."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from pathlib import Path

from tests.damage.processes import killed_after, killed_at, steps_of
from tests.damage.writers import Writer

REST = 5
"""Kills between two writers that may end: what they leave behind piles up."""


def kill(writer: Writer, place: Path, kills: int, seed: int = 0) -> dict[str, object]:
    """A row of the table: kill a writer, read after each kill, write after some of them."""
    chance, folder = random.Random(seed), place / "value"
    shutil.rmtree(folder, ignore_errors=True)
    values = _values(writer, folder)
    writer.write(folder, 0)
    clean = _hidden(folder)
    if writer.resumes:
        shutil.rmtree(folder)
    n_steps, seconds = steps_of(lambda: writer.write(folder, 1), folder)
    if writer.resumes:
        shutil.rmtree(folder)
    else:
        writer.write(folder, 0)
    n_at = min(n_steps, 4 * kills // 5)
    moments = sorted(round(1 + i * (n_steps - 1) / max(1, n_at - 1)) for i in range(n_at))
    row: Counter[str] = Counter()
    current = attempts = 0
    while row["killed"] < kills and attempts < 3 * kills:
        number, attempts = row["killed"], attempts + 1
        write = lambda to=1 - current: writer.write(folder, to)  # noqa: E731
        if number < n_at:
            code = killed_at(moments[number], write, folder)
        else:
            code = killed_after(chance.uniform(0, seconds), write)
            seconds *= 0.8 if code == 0 else 1.0  # as long as it takes where the machine is calm
        assert code in (0, -signal.SIGKILL), f"{writer.name} ended with {code}"
        row["killed"] += code != 0
        row[_state(writer, folder, values, current)] += 1
        if code and row["killed"] % REST and row["killed"] < kills:
            continue
        if code:
            writer.write(folder, 1 - current)
        left = _hidden(folder) - clean
        row["left"] += len(left)
        print("".join(f"{writer.name}: left {name}\n" for name in left), end="", flush=True)
        row["lost"] += writer.read(folder) != values[1 - current]
        if writer.resumes:
            shutil.rmtree(folder)
        else:
            current = 1 - current
    keys = ("killed", "old", "new", "resumed", "lost", "left")
    return {"writer": writer.name, "steps": n_steps, **{key: row[key] for key in keys}}


def _values(writer: Writer, folder: Path) -> list[str]:
    """What is read of value 0 and of value 1."""
    values = []
    for version in (0, 1):
        writer.write(folder, version)
        values.append(writer.read(folder))
        shutil.rmtree(folder)
    assert writer.resumes or values[0] != values[1], writer.name
    return values


def _state(writer: Writer, folder: Path, values: list[str], current: int) -> str:
    try:
        value = writer.read(folder)
    except Exception as error:
        print(f"{writer.name}: lost: {error!r}", flush=True)
        return "lost"
    if value not in values:
        print(f"{writer.name}: lost: neither the old value nor the new one", flush=True)
        return "lost"
    if writer.resumes:
        return "resumed"
    return "old" if value == values[current] else "new"


def _hidden(folder: Path) -> set[str]:
    """Names of files that are no part of the value."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {name for name in names if any(part.startswith(".") for part in Path(name).parts)}
