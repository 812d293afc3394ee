"""A lock that one process holds, and that the system takes from a process that is killed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from laplace_metric.errors import WriteError

FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
"""A link is an error: it would make a file elsewhere."""
HELD = {errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK, errno.EDEADLK}
"""Answers of the system where another handle holds the lock."""

if os.name == "nt":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def take(handle: int) -> bool | None:
    """Return whether the lock of an open file is ours now; None if its file system has no locks."""
    try:
        _lock(handle)
    except OSError as error:
        return False if error.errno in HELD else None
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that the file ``path`` stands for; the file is gone afterwards.

    On a file system without locks, nothing is held.

    Raises
    ------
    WriteError
        If another process or thread holds it.
    """
    handle = os.open(path, FLAGS, 0o666)
    try:
        held = take(handle)
        # the last holder may have removed the file since it was opened: a lock on nothing
        if held is False or not is_at(handle, path):
            raise WriteError(f"{path.parent} is in use: another process holds {path.name}.")
        try:
            yield
        finally:
            if os.name != "nt":  # where a file that is open cannot be removed
                path.unlink(missing_ok=True)
    finally:
        os.close(handle)
        if os.name == "nt":
            with suppress(OSError):
                path.unlink()


def is_at(handle: int, path: Path) -> bool:
    """Return whether ``path`` is the name of an open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
