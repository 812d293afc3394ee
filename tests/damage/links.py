"""Planted links: nothing outside a folder changes through it, and a reader changes nothing."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from laplace_metric.errors import LaplaceMetricError
from tests.damage.processes import CHANGES, WRITES, child, ended
from tests.damage.writers import Writer

TOKEN = "0123456789abcdef"
"""What names hidden files here, so that a link can lie where the next one would be."""


def plant(writer: Writer, place: Path, step: int) -> dict[str, object]:
    """A row of the table: links at every ``step``-th path that a writer changes.

    Each is, in turn, a link to a file, to a folder and to nothing. The value is read, replaced, and
    read again.
    """
    keys = ("trials", "refused", "touched", "changed by reading", "unnamed")
    ours, end = os.pipe()
    pid = child(lambda: _trials(writer, place, step, end))
    os.close(end)
    with os.fdopen(ours) as lines:
        said = [line.strip().split(maxsplit=1) for line in lines]
    code = ended(pid)
    row = dict.fromkeys(keys, 0)
    for outcome, *more in said:
        row[outcome.replace("_", " ")] += 1
        print("".join(f"{writer.name}: {outcome}: {text}\n" for text in more), end="", flush=True)
    row["unnamed"] += code != 0
    return {"writer": writer.name, **row}


def _trials(writer: Writer, place: Path, step: int, end: int) -> None:
    secrets.token_hex = lambda n=None: TOKEN  # type: ignore[assignment]
    folder, saved, victim = place / "value", place / "saved", place / "victim"
    for path in (folder, saved, victim):
        shutil.rmtree(path, ignore_errors=True)
    writer.write(folder, 0)
    shutil.copytree(folder, saved)
    if writer.resumes:
        shutil.rmtree(folder)
    paths = _changed_paths(folder, lambda: writer.write(folder, 1))
    names = sorted({path.name for path in paths})
    number = 0
    for path in paths:
        for kind in ("file", "folder", "nothing"):
            number += 1
            if number % step:
                continue
            _restore(folder, saved)
            _restore(victim, None, names)
            _put_link(folder / path, victim, kind)
            os.write(end, b"trials\n")
            for outcome in _outcomes(writer, folder, victim):
                more = "" if outcome == "refused" else f" {path} -> {kind}"
                os.write(end, f"{outcome}{more}\n".encode())


def _outcomes(writer: Writer, folder: Path, victim: Path) -> list[str]:
    outside, said = _seen(victim), []
    for work in ("read", "write", "read"):
        before = _seen(folder)
        try:
            writer.read(folder) if work == "read" else writer.write(folder, 1)
        except LaplaceMetricError:
            if work == "write":
                said.append("refused")
        except OSError as error:
            if work == "write":  # the reader of this test may open a file by its name
                said.append(f"unnamed {error!r:.200}")
        if work == "read" and _seen(folder) != before:
            said.append("changed_by_reading")
        if _seen(victim) != outside:
            return [*said, f"touched by {work}"]
    return said


def _changed_paths(folder: Path, work: Callable[[], object]) -> list[Path]:
    """Paths below ``folder`` that ``work`` opens to write, makes, renames or removes."""
    found = dict[str, None]()
    watching = True

    def audited(event: str, arguments: tuple[object, ...]) -> None:
        if not watching:
            return
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if opened or event in CHANGES:
            names = arguments[:2] if event == "os.rename" else arguments[:1]
            found.update(dict.fromkeys(os.fspath(n) for n in names if isinstance(n, (str, Path))))

    sys.addaudithook(audited)
    work()
    watching = False
    paths = (Path(name) for name in found)
    inside = {p.relative_to(folder) for p in paths if p.is_relative_to(folder)} - {Path()}
    above = {parent for p in inside for parent in p.parents} - {Path()}
    return sorted(inside | above)


def _restore(folder: Path, saved: Path | None, names: list[str] | None = None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if saved is not None:
        shutil.copytree(saved, folder)
        return
    folder.mkdir()
    for name in names or ():
        (folder / name).write_text(json.dumps(["content", "names"]))


def _put_link(path: Path, victim: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    goal = {"file": victim / path.name, "folder": victim, "nothing": victim / "new"}[kind]
    path.symlink_to(goal)


def _seen(folder: Path) -> list[tuple[object, ...]]:
    """Every path below a folder, with type, size, time of change and content."""
    rows: list[tuple[object, ...]] = []
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        plain = path.is_file() and not path.is_symlink()
        content = path.read_bytes() if plain else None
        rows.append((str(path), status.st_mode, status.st_mtime_ns, content))
    return rows
