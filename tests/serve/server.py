"""``laplace-metric serve`` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = ("-m", "laplace_metric", "serve", "index", "--trust-recipe", "--port", "0")


def require_extra() -> None:
    for name in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
        pytest.importorskip(name)


class ServerProcess:
    """Runs until it is told to stop."""

    def __init__(
        self, folder: Path, *words: str, environment: dict[str, str] | None = None
    ) -> None:
        kept = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=kept | (environment or {}),
            text=True,
            stderr=subprocess.PIPE,
        )
        self.notes: list[str] = []
        self._told = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self._told.wait(120)
        found = re.search(r"running on http://([^:]+):(\d+)", "".join(self.notes))
        assert found, "".join(self.notes)
        self.address = found[1], int(found[2])
        self.url = f"http://{found[1]}:{found[2]}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.notes.append(line)
            if "running on" in line:
                self._told.set()
        self._told.set()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reading.join(10)
        return code


@contextmanager
def serving(
    folder: Path, *options: str, words: tuple[str, ...] = COMMAND, **environment: str
) -> Iterator[ServerProcess]:
    """A server of ``folder/index``, which is gone at the end."""
    server = ServerProcess(folder, *words, *options, environment=environment)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def exchange(address: tuple[str, int], request: bytes, timeout: float = 30) -> bytes:
    """All that a server sends for these bytes, until it closes."""
    with socket.create_connection(address, timeout=timeout) as connection:
        connection.sendall(request)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def memory_of(pid: int) -> float:
    """MB in memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
