"""A disk that is full: the old value is kept, and the error says so."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from laplace_metric.errors import WriteError
from tests.damage.processes import child, ended
from tests.damage.writers import CommandError, Writer

REFUSED, WRITTEN, UNNAMED = 3, 4, 5
LIMITS = (10, 300, 1_000, 3_000, 10_000)
"""Bytes that a file may have."""
ROOM = (0, 4096, 8192, 16384, 32768)
"""Bytes that are left on a disk."""


def fill(writer: Writer, place: Path, n: int) -> dict[str, object]:
    """A row of the table: n limits of a file's size, and as many full disks where one can mount."""
    outcomes = {"trials": 0, "refused": 0, "written": 0, "unnamed": 0, "lost": 0}
    folder = place / "value"
    for limit in LIMITS[:n]:
        _trial(writer, folder, lambda limit=limit: _limited(limit), outcomes)
    with _small_disk(place / "disk") as disk:
        for room in ROOM[:n] if disk else ():
            _trial(writer, disk / "value", lambda room=room: _filled(disk, room), outcomes)
    return {"writer": writer.name, **outcomes}


def _trial(
    writer: Writer, folder: Path, make_full: Callable[[], None], outcomes: dict[str, int]
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    writer.write(folder, 0)
    old = writer.read(folder)
    if writer.resumes:
        shutil.rmtree(folder)

    def write() -> int:
        make_full()
        try:
            writer.write(folder, 1)
        except CommandError as error:
            said = error.code == 1 and "\n" not in error.text and "cannot be written" in error.text
            print("" if said else f"{writer.name}: {error}", end="", flush=True)
            return REFUSED if said else UNNAMED
        except WriteError:
            return REFUSED
        return WRITTEN

    code = ended(child(write))
    (folder.parent / "filler").unlink(missing_ok=True)
    outcomes["trials"] += 1
    outcomes["refused"] += code == REFUSED
    outcomes["written"] += code == WRITTEN
    outcomes["unnamed"] += code not in (REFUSED, WRITTEN)
    outcomes["lost"] += writer.read(folder) != old and code != WRITTEN


def _limited(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _filled(disk: Path, room: int) -> None:
    status = os.statvfs(disk)
    with (disk / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, status.f_bavail * status.f_frsize - room)


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path | None]:
    """A tmpfs of 2 MB; None where mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)
