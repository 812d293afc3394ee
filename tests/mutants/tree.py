"""A copy of the tree in a temporary folder, in which files may be wrong, and a worker there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEFT_OUT = (
    *(".git", ".venv", ".cache", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"),
    *("build", "dist", "*.egg-info", "benchmark-cache", "node_modules"),
)


@dataclass(frozen=True)
class Run:
    """What came of a run: `found` is None if its process died, `late` if it was out of time."""

    late: bool
    found: dict[str, Any] | None
    took: float


class Tree:
    """The copy at `root`: `run` tests there, with another content of a file if one is given."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self._stamp = 0
        environment = {
            **os.environ,
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MUTANTS_ANSWER": str(folder / "answer.json"),
        }
        self._worker = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("worker.py")],
            cwd=root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        files: Sequence[str],
        *,
        seconds: float,
        tests: Sequence[str] | None = None,
        options: Sequence[str] = (),
    ) -> Run:
        """Run the named tests of the files, or without names all of them, with their lines."""
        request = {
            "files": list(files),
            "tests": list(tests or ()),
            "options": list(options),
            "seconds": seconds,
            "record": tests is None,
        }
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps(request) + "\n")
        self._worker.stdin.flush()
        answer = self._worker.stdout.readline()
        if not answer:
            raise RuntimeError("the worker of the mutants ended; its error is above")
        return Run(**json.loads(answer))

    @contextmanager
    def with_content(self, file: str, content: bytes) -> Iterator[None]:
        """Give `file` another content for a while."""
        path = self.root / file
        whole = path.read_bytes()
        try:
            self._write(path, content)
            yield
        finally:
            self._write(path, whole)

    def _write(self, path: Path, content: bytes) -> None:
        """Write with a time of its own, so that no compiled file passes for that of another."""
        path.write_bytes(content)
        self._stamp += 1
        os.utime(path, (self._stamp, self._stamp))

    def close(self) -> None:
        """End the worker and what it runs."""
        with suppress(ProcessLookupError):
            os.killpg(self._worker.pid, signal.SIGTERM)
        self._worker.wait()


@contextmanager
def copied(root: Path) -> Iterator[Tree]:
    """Copy the files of a repository to a temporary folder, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        to = Path(folder).resolve() / "tree"
        shutil.copytree(root, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
        tree = Tree(to, to.parent)
        try:
            yield tree
        finally:
            tree.close()
