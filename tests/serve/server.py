"""``laplace-metric serve`` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def require_extra() -> None:
    for name in ("fastapi", "uvicorn", "python_multipart", "httpx"):
        pytest.importorskip(name)


class ServerProcess:
    """Runs until it is told to stop."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "laplace_metric", "serve", "index", "--trust-recipe"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*command, "--port", "0", *options],
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"at (http://\S+)", line)
        self.notes: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        if found is None:
            self._reading.join(10)
            raise AssertionError(line + "".join(self.notes))
        self.url = found[1]
        alive = re.search(r"liveness: (http://[^)]+)", line)
        self.alive = alive[1] if alive else ""

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.notes.append(line)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reading.join(10)
        return code


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[ServerProcess]:
    server = ServerProcess(folder, *options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
