"""What a spool has committed: a small JSON, and a log with one line for each commit.

The log only grows; the JSON says how many of its bytes count, and their sha256. Replacing the JSON
is the one atomic step of a commit, and costs the same however many commits there were before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from laplace_metric import files
from laplace_metric.errors import FileFormatError

SPOOL = files.Kind("spool", "a spool of features", 1)
LOG = "commits.jsonl"
REMEDY = "Nothing was changed: restore the folder from a copy, or delete it and fit again."


@dataclass(frozen=True)
class Commit:
    """Rows added by one commit, and the CRC-32 of their bytes in both files.

    Examples
    --------
    >>> Commit(3, 17, 4).line
    b'[3, 17, 4]\\n'
    """

    rows: int = 0
    features: int = 0
    labels: int = 0

    @property
    def line(self) -> bytes:
        """As it is in the log."""
        return json.dumps(astuple(self)).encode() + b"\n"


class Log:
    """Commits in ``commits.jsonl``: how many rows they hold, how long it is, its sha256."""

    def __init__(self, path: Path, lines: bytes = b"") -> None:
        self.path = path
        self._digest = hashlib.sha256(lines)
        self.size = len(lines)
        self.rows = sum(commit.rows for commit in _commits(lines))

    @classmethod
    def read(cls, path: Path, size: int, sha256: str) -> tuple[Log, list[Commit]]:
        """The first ``size`` bytes of the log, if they are those that were committed."""
        check_size(path, size)
        with open(path, "rb") as file:
            lines = file.read(size)
        if hashlib.sha256(lines).hexdigest() != sha256:
            raise damaged(path, f"its sha256 is not the one in {SPOOL.index}")
        return cls(path, lines), list(_commits(lines))

    def append(self, commit: Commit) -> None:
        """Write one line after the committed ones; return when it is on the disk."""
        with open(self.path, "r+b") as file:
            file.seek(self.size)
            file.write(commit.line)
            file.flush()
            os.fsync(file.fileno())
        self._digest.update(commit.line)
        self.size, self.rows = self.size + len(commit.line), self.rows + commit.rows

    @property
    def sha256(self) -> str:
        """Of the whole log."""
        return self._digest.hexdigest()


def _commits(lines: bytes) -> Iterator[Commit]:
    return (Commit(*json.loads(line)) for line in lines.splitlines())


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Replace the manifest in one step; return when that is on the disk."""
    header = {"format": SPOOL.format, "version": SPOOL.version, "sha256": _sha256(content)}
    files._replace(folder / SPOOL.index, json.dumps({**header, **content}, indent=2).encode())
    _sync_folder(folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What ``write_manifest`` wrote.

    Raises
    ------
    FileFormatError
        If there is none, or one that is damaged, foreign or newer.
    """
    try:
        found = files._index(folder, SPOOL)
    except FileFormatError as error:
        raise FileFormatError(f"{error} {REMEDY}") from error
    content = {name: found[name] for name in found if name not in ("format", "version", "sha256")}
    if found.get("sha256") != _sha256(content):
        raise damaged(folder / SPOOL.index, "its content does not have the sha256 that it names")
    return content


def check_size(path: Path, size: int) -> None:
    """Raise unless the file is at least as long as what was committed."""
    found = path.stat().st_size
    if found < size:
        raise damaged(path, f"it has {found} bytes, {size} were committed")


def damaged(path: Path, reason: str) -> FileFormatError:
    """The error that says which file, what is wrong and what to do."""
    return FileFormatError(f"{path} is damaged: {reason}. {REMEDY}")


def _sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk when its folder is; not every system can be asked for that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
