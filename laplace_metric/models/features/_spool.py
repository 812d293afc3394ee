"""What a spool has committed: a small JSON, and a log with one line for each commit.

The log only grows; the JSON says how many of its bytes count, and their sha256. Replacing the JSON
is the one atomic step of a commit, and costs the same however many commits there were before.

Reopening a spool: first everything is verified, only then is anything cut off.

Rows that survive the process: raw files of which a manifest says how much is committed.

A process killed at any moment leaves a folder from which ``resume`` continues after the last
commit. One process writes a folder at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from io import FileIO
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from laplace_metric._utils import files
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models.features._disk import (
    FEATURES,
    LABELS,
    DiskRows,
    RawFile,
    bytes_of,
    fill,
    plain,
)
from laplace_metric.models.features._rows import BLOCK_BYTES, Like, check_like, check_shapes

SPOOL = files.FileKind("spool", "a spool of features", 1)
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
    files.write_atomically(folder / SPOOL.index, json.dumps({**header, **content}, indent=2))
    _sync_folder(folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What ``write_manifest`` wrote.

    Raises
    ------
    FileFormatError
        If there is none, or one that is damaged, foreign or newer.
    """
    try:
        found = files.read_index(folder, SPOOL)
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


@dataclass(frozen=True)
class Recovered:
    """A folder as of its last commit: its log, width and types, and whether it is complete."""

    log: Log
    like: Like | None
    complete: bool

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes that count, by file name."""
        data = {FEATURES: 0, LABELS: 0}
        if self.like is not None:
            for name, rows in zip(data, self.like, strict=True):
                data[name] = self.log.rows * _file(Path(name), rows).row_bytes
        return {LOG: self.log.size, **data}


def recover(folder: Path) -> Recovered:
    """What is committed in a folder, after one sequential reading of all of it.

    Raises
    ------
    FileFormatError
        If a file is missing, shorter than committed, altered, foreign or newer.
    """
    manifest = read_manifest(folder)
    try:
        return _recover(folder, manifest)
    except OSError as error:
        path = error.filename or folder
        raise FileFormatError(f"{path} cannot be read: {error.strerror}. {REMEDY}") from error


def cut(folder: Path, sizes: dict[str, int]) -> None:
    """Remove what is behind the given sizes, and manifests that were not finished."""
    for name, size in sizes.items():
        if (folder / name).stat().st_size > size:
            os.truncate(folder / name, size)
    for left_over in folder.glob(f".{SPOOL.index}.*"):
        left_over.unlink(missing_ok=True)


def _recover(folder: Path, manifest: dict[str, Any]) -> Recovered:
    log, commits = Log.read(folder / LOG, manifest["log"]["bytes"], manifest["log"]["sha256"])
    found = Recovered(log, _like(manifest["like"]), manifest["complete"])
    for name, size in found.sizes.items():
        check_size(folder / name, size)
    if found.like is not None:
        features, labels = found.like
        _verify(_file(folder / FEATURES, features), [(c.rows, c.features) for c in commits])
        _verify(_file(folder / LABELS, labels), [(c.rows, c.labels) for c in commits])
    return found


def _like(content: dict[str, Any] | None) -> Like | None:
    if content is None:
        return None
    features, labels = (
        torch.empty(0, *content[name]["shape"], dtype=getattr(torch, content[name]["dtype"]))
        for name in ("features", "labels")
    )
    return features, labels


def _file(path: Path, like: torch.Tensor) -> RawFile:
    return RawFile(path, like.dtype, tuple(like.shape[1:]))


def _verify(file: RawFile, commits: Iterable[tuple[int, int]]) -> None:
    """Compare the rows of each commit with their CRC-32."""
    start, buffer = 0, memoryview(bytearray(BLOCK_BYTES))
    with FileIO(file.path) as handle:
        for rows, expected in commits:
            if _crc32(handle, file, rows * file.row_bytes, buffer) != expected:
                reason = f"rows {start} to {start + rows} are not those that were committed"
                raise damaged(file.path, reason)
            start += rows


def _crc32(handle: FileIO, file: RawFile, size: int, buffer: memoryview) -> int:
    value = 0
    while size:
        part = buffer[: min(size, len(buffer))]
        fill(handle, part, file.path)
        value, size = crc32(part, value), size - len(part)
    return value


class Spool(DiskRows):
    """Features [N, D] and labels [N] in a folder, appended and committed.

    Parameters
    ----------
    folder : Path
        A folder without a spool; made if needed. One with a spool: ``Spool.resume(folder)``.

    Raises
    ------
    InputError
        If the folder has the files of a spool.

    Examples
    --------
    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     spool = Spool(folder)
    ...     spool.append(torch.ones(2, 3), torch.tensor([0, 1]))
    ...     spool.commit()
    ...     spool.append(torch.ones(5, 3), torch.arange(5))  # the process is killed here
    ...     spool.close()
    ...     resumed = Spool.resume(folder)
    >>> len(resumed), resumed.exhausted
    (2, False)
    """

    exhausted: bool
    """Whether ``complete`` was called, now or before the folder was reopened."""

    _log: Log
    _pending: Commit
    _published: dict[str, Any]

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Path(folder))
        _create(self.folder)
        self._start(Log(self.folder / LOG), exhausted=False)
        self._publish()

    @classmethod
    def resume(cls, folder: Path | str) -> Spool:
        """Reopen a folder as it was at the last commit; what was written after it is removed.

        Raises
        ------
        FileFormatError
            If a file is missing, shorter than committed, altered, foreign or newer. Nothing is
            changed in that case.
        """
        spool = cls.__new__(cls)
        DiskRows.__init__(spool, Path(folder))
        found = recover(spool.folder)
        cut(spool.folder, found.sizes)
        if found.like is not None:
            spool._shape(found.like)
        spool._start(found.log, exhausted=found.complete)
        return spool

    def append(self, features: Tensor, labels: Tensor) -> None:
        """Write features [n, D] and labels [n]; they count from the next ``commit`` on.

        Raises
        ------
        InputError
            For another width or type than before, or after ``complete``.
        """
        check_shapes(features, labels, where="features")
        check_like(features, labels, self.like, where="features")
        if self.exhausted:
            raise InputError(f"{self.folder} is complete: nothing can be appended.")
        features, labels = plain(features), plain(labels)
        super().append(features, labels)
        self._pending = Commit(
            self._pending.rows + len(features),
            crc32(bytes_of(features), self._pending.features),
            crc32(bytes_of(labels), self._pending.labels),
        )

    def commit(self) -> None:
        """Make every row so far durable; return when it is."""
        if self._pending.rows:
            for file in self._files:
                file.sync()
            self._log.append(self._pending)
            self._pending = Commit()
        self._publish()

    def complete(self) -> None:
        """Commit, and note that the loader was exhausted: ``exhausted`` is True from now on."""
        self.exhausted = True
        self.commit()

    def _start(self, log: Log, *, exhausted: bool) -> None:
        self._log, self._rows, self.exhausted = log, log.rows, exhausted
        self._pending, self._published = Commit(), {}

    def _publish(self) -> None:
        log = {"bytes": self._log.size, "sha256": self._log.sha256}
        content = {"rows": self._log.rows, "complete": self.exhausted, "log": log}
        content["like"] = self.like and {
            name: {"dtype": str(rows.dtype).removeprefix("torch."), "shape": list(rows.shape[1:])}
            for name, rows in zip(("features", "labels"), self.like, strict=True)
        }
        if content != self._published:
            write_manifest(self.folder, content)
            self._published = content


def _create(folder: Path) -> None:
    """Empty files, unless some of a spool are there."""
    folder.mkdir(parents=True, exist_ok=True)
    data = [folder / name for name in (FEATURES, LABELS, LOG)]
    if (folder / SPOOL.index).exists() or any(p.exists() and p.stat().st_size for p in data):
        raise InputError(
            f"{folder} holds a spool of features already: reopen it with Spool.resume, or choose "
            "another folder."
        )
    for path in data:
        path.touch()
