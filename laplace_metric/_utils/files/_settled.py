"""Read beside writers: the old value or the new one, never a mix."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from laplace_metric._utils.files._current import current
from laplace_metric._utils.files._disk import only_regular
from laplace_metric._utils.files._kinds import FileKind
from laplace_metric.errors import FileFormatError

Loaded = TypeVar("Loaded")
READS = 1000
"""Tries to read beside a writer that never rests."""


def settled(folder: Path, kind: FileKind, load: Callable[[], Loaded]) -> Loaded:
    """What ``load`` reads of a value; it is called again if the value was replaced meanwhile."""
    for _ in range(READS):
        with _stamped(folder / kind.index) as unchanged:
            try:
                return load()
            except (FileFormatError, OSError):
                if unchanged():
                    raise
    return load()


def settled_together(paths: Sequence[Path], load: Callable[[], Loaded]) -> Loaded:
    """What ``load`` reads of several values, none of whose JSON was replaced meanwhile."""
    for _ in range(READS):
        with ExitStack() as stack:
            checks = [stack.enter_context(_stamped(path)) for path in paths]
            try:
                value = load()
            except (FileFormatError, OSError):
                if all(unchanged() for unchanged in checks):
                    raise
                continue
            if all(unchanged() for unchanged in checks):
                return value
    return load()


@contextmanager
def _stamped(path: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function: whether the JSON that counts for ``path`` is the same file as now."""
    with ExitStack() as stack:
        if os.name != "nt":  # held open, its number is not given to another file
            with suppress(OSError):
                stack.enter_context(open(current(path), "rb", opener=only_regular))
        before = _stamp(path)
        yield lambda: _stamp(path) == before


def _stamp(path: Path) -> tuple[int, ...] | None:
    for place in (current(path), path):  # it may have moved in between
        with suppress(OSError):
            status = place.stat()
            return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return None
