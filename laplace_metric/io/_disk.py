"""Disk: kinds of folders, hashes, files that are synced and replaced, locks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from laplace_metric.errors import FileFormatError, WriteError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FileKind:
    """Kind of a folder: its name in file names and in messages, and the version of its format.

    Examples
    --------
    >>> FileKind("checkpoint", "a training checkpoint", 1).index
    'checkpoint.json'
    """

    name: str
    title: str
    version: int

    @property
    def format(self) -> str:
        """Name of the format in the JSON."""
        return f"laplace_metric.{self.name}"

    @property
    def index(self) -> str:
        """File name of the JSON."""
        return f"{self.name}.json"

    def owns(self, name: str) -> bool:
        """Return whether ``write`` may have given a file this name."""
        pattern = rf"{re.escape(self.name)}-[0-9a-f]{{16}}\.safetensors"
        return re.fullmatch(pattern, name) is not None


POSTERIOR = FileKind("posterior", "a saved posterior", 2)
INDEX = POSTERIOR.index


# Hashes that tell one content from another: of files, of JSON, of tensors.


SEAL = "json_sha256"


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """JSON content with its own sha256, so that every altered value is noticed.

    Examples
    --------
    >>> sealed({"n": 1}) == sealed(sealed({"n": 1}))
    True
    """
    plain = json.loads(json.dumps({k: v for k, v in content.items() if k != SEAL}))
    text = json.dumps(plain, sort_keys=True)
    return {**plain, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def head_of(path: Path) -> list[Any]:
    """Size of a safetensors file, and sha256 of its header: all of it but the tensors."""
    with open(path, "rb", opener=only_regular) as file:
        size, first = os.fstat(file.fileno()).st_size, file.read(8)
        head = first + file.read(min(int.from_bytes(first, "little"), size))
    return [size, hashlib.sha256(head).hexdigest()]


def sha256_of(path: Path) -> str:
    """sha256 of a file."""
    sha256 = hashlib.sha256()
    with open(path, "rb", opener=only_regular) as file:
        while block := file.read(2**20):
            sha256.update(block)
    return sha256.hexdigest()


def digest(text: str, tensors: Iterable[Tensor] = ()) -> str:
    """sha256 of a text, then of tensors (any shapes) in order, with their shapes and dtypes.

    Names of the tensors, where they matter, belong into the text.

    Examples
    --------
    >>> import torch
    >>> digest("a", [torch.zeros(2)]) == digest("a", [torch.zeros(2, 1)])
    False
    """
    import torch

    sha256 = hashlib.sha256(text.encode())
    for tensor in tensors:
        sha256.update(f"|{tuple(tensor.shape)} {tensor.dtype}|".encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        sha256.update(content.numpy().data)
    return sha256.hexdigest()


# What the system does to files: write, sync, rename, refuse; refusals get a name.


def write_synced(path: Path, content: str | bytes) -> None:
    """Write a file that does not exist yet; a link in its place is an error."""
    with path.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def only_regular(path: str, flags: int) -> int:
    """Open a file, as `opener` of ``open``; ``OSError`` for a pipe or device: it may not end."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", path)


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def refuse_link(path: Path) -> Path:
    """Return a path within a folder of ours, through which that folder is written to.

    Raises
    ------
    FileFormatError
        If it is a link: what it leads to is not part of the folder.
    """
    if path.is_symlink():
        raise FileFormatError(
            f"{path} is a link, which would lead out of {path.parent}: remove it, or give another "
            "folder."
        )
    return path


def sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """A rename is on the disk when its folder is; not every system can be asked for that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def replace_file(source: Path, target: Path) -> None:
    """Rename; where readers keep files from being replaced (Windows), wait for them."""
    for _ in range(100 if os.name == "nt" else 0):
        try:
            return os.replace(source, target)
        except PermissionError:
            time.sleep(0.05)
    os.replace(source, target)


@contextmanager
def readable(path: Path, mode: int = 0o666) -> Iterator[None]:
    """Readable as the umask says: safetensors makes files that only their owner may read."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL, mode))
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


@contextmanager
def named_errors(*paths: Path) -> Iterator[None]:
    """Turn what the system refuses within into ``WriteError``.

    Raises
    ------
    WriteError
        If one of the paths cannot be written.
    FileFormatError
        As it is.
    """
    try:
        yield
    except (WriteError, FileFormatError):
        raise
    except (SafetensorError, OSError, RuntimeError) as error:
        listed = ", ".join(dict.fromkeys(map(str, paths)))
        raise WriteError(
            f"{listed} cannot be written: {error}. What was there before is kept; make room or "
            "give another place."
        ) from error


# One process or thread at a time: a lock that a killed process does not keep.


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
    if os.name == "nt":  # a file that is open cannot be removed there
        os.close(handle)
        with suppress(OSError):
            path.unlink()
        return
    path.unlink(missing_ok=True)  # while it is held: no other process can have taken this one since
    fcntl.flock(handle, fcntl.LOCK_UN)  # a forked process may have it open as well
    os.close(handle)
