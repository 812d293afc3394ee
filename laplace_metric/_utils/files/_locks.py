"""One process or thread at a time: a lock that a killed process does not keep."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from laplace_metric.errors import WriteError

SECONDS = 600.0
"""To wait for another writer, which may be saving many gigabytes."""
UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""What a file system without locks answers."""
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
"""A link is an error: it would make a file elsewhere."""

if os.name == "nt":
    import msvcrt

    def _take(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]

else:
    import fcntl

    def _take(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(path: Path, seconds: float = SECONDS) -> Iterator[bool]:
    """Hold the lock that the file ``path`` stands for; the file is gone afterwards.

    Yields whether it is held: False on a file system without locks.

    Raises
    ------
    WriteError
        If another process or thread still holds it after ``seconds``.
    """
    handle = _acquired(path, time.monotonic() + seconds)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            _release(handle, path)


def _acquired(path: Path, deadline: float) -> int | None:
    pause = 0.001
    while True:
        handle = os.open(path, FLAGS, 0o666)
        try:
            _take(handle)
            # the last holder removed the file: who waited for that one holds a lock on nothing
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in UNSUPPORTED:
                os.close(handle)
                path.unlink(missing_ok=True)
                return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if time.monotonic() > deadline:
            raise WriteError(
                f"{path.parent} is being written to by another process, which holds {path.name}: "
                "wait for it, or give another folder."
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _release(handle: int, path: Path) -> None:
    if os.name == "nt":  # only a file that nobody has open can be removed there
        os.close(handle)
        with suppress(OSError):
            path.unlink()
        return
    path.unlink(missing_ok=True)  # while it is held: nobody can have taken this one since
    fcntl.flock(handle, fcntl.LOCK_UN)  # a forked process may have it open as well
    os.close(handle)
