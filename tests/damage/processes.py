"""Children of a warm process, and how they die."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def child(work: Callable[[], int | None]) -> int:
    """A forked process that ends with the code of ``work``, 99 after an error; its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """The exit code of a child; negative: the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Steps:
    """Counts the calls that change files below ``folder``; before the n-th, the process dies."""

    def __init__(self, folder: Path, last: int | None = None) -> None:
        self.folder, self.last, self.count = str(folder), last, 0

    def watch(self) -> None:
        """From now on, in this process for good."""
        sync = os.fsync

        def fsync(handle: int) -> None:
            self._step()
            sync(handle)

        os.fsync = fsync
        sys.addaudithook(self._audited)

    def _audited(self, event: str, arguments: tuple[object, ...]) -> None:
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if (opened or event in CHANGES) and str(arguments[0]).startswith(self.folder):
            self._step()

    def _step(self) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def steps_of(work: Callable[[], object], folder: Path) -> tuple[int, float]:
    """How many steps there are in ``work``, and its seconds."""
    ours, theirs = os.pipe()

    def counted() -> None:
        steps = Steps(folder)
        steps.watch()
        work()
        os.write(theirs, str(steps.count).encode())

    began = time.perf_counter()
    code = ended(child(counted))
    seconds = time.perf_counter() - began
    os.close(theirs)
    count = os.read(ours, 100).decode()
    os.close(ours)
    assert code == 0, f"{work} ended with {code}"
    return int(count), seconds


def killed_at(step: int, work: Callable[[], object], folder: Path) -> int:
    """The exit code of a child that dies before a step, or gets to its end."""

    def dying() -> None:
        Steps(folder, step).watch()
        work()

    return ended(child(dying))


def killed_after(seconds: float, work: Callable[[], object]) -> int:
    """The exit code of a child that is killed after a time."""
    pid = child(lambda: (work(), 0)[1])
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return ended(pid)
