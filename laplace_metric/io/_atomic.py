"""One file that is whole or the old one: written next to its place, synced, renamed.

A writer works in a hidden file that it holds a lock on. The system takes the lock from a process
that is killed, so the next writer of the same name knows which hidden files it may remove. Writers
do not wait for each other: the last one to rename counts. Readers write nothing.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from laplace_metric._utils.names import utf8
from laplace_metric.errors import FileFormatError, InputError, WriteError
from laplace_metric.io._lock import is_at, take

LONGEST_NAME = 255 - len("..0123456789abcdef.tmp")
"""Bytes of a file name: that of the hidden file is longer by so many."""


@contextmanager
def writing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a file to write to, which becomes ``path`` at the end, unless there was an error.

    Parameters
    ----------
    path : Path
        File that is replaced, in a folder that exists. Of a link, the link is replaced.
    mode : int
        Permissions of the file, less those that the umask removes. Default: 0o666.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with named_errors(path):
        remove_abandoned(path)
        with _hidden(path, mode) as temporary:
            yield temporary
            sync_file(temporary)
            _replace(temporary, path)
        sync_folder(path.parent)


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace ``path`` in one step; see ``writing``. A text is written by ``names.utf8``.

    Parameters
    ----------
    path : Path
        File that is replaced.
    content : str or bytes
        Content of the file.
    mode : int
        Permissions of the file, less those that the umask removes. Default: 0o666.
    """
    with writing(path, mode) as temporary:
        temporary.write_bytes(utf8(content) if isinstance(content, str) else content)


@contextmanager
def _hidden(path: Path, mode: int) -> Iterator[Path]:
    """Yield a new hidden file next to ``path``, whose lock is held; at the end it is gone."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            # another writer may have taken the new file for an abandoned one
            if os.name == "nt" or (take(handle) is not False and is_at(handle, temporary)):
                break
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    if os.name == "nt":  # where a file that is open cannot be renamed
        os.close(handle)
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if os.name != "nt":
            os.close(handle)


def remove_abandoned(path: Path) -> None:
    """Remove the hidden files of killed writers of ``path``; those of living ones are locked."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    for left in path.parent.iterdir():
        if pattern.fullmatch(left.name):
            with suppress(OSError):
                _remove_if_free(left)


def _remove_if_free(path: Path) -> None:
    if path.is_symlink():
        return path.unlink()
    with open(path, "rb", opener=only_regular) as file:
        if os.name == "nt" or (take(file.fileno()) is True and is_at(file.fileno(), path)):
            path.unlink()


def only_regular(path: str, flags: int) -> int:
    """Open a file, as `opener` of ``open``; ``OSError`` for a pipe or device: it may not end.

    Parameters
    ----------
    path : str
        Name of the file.
    flags : int
        Flags of ``os.open``.

    Raises
    ------
    OSError
        If it is a pipe, a device or another file that is not regular.
    """
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", path)


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
    """Wait until the content of a file is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until renames in a folder are on the disk, where the system can be asked for that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _replace(source: Path, target: Path) -> None:
    """Rename; where readers keep files from being replaced (Windows), wait for them."""
    for _ in range(100 if os.name == "nt" else 0):
        try:
            return os.replace(source, target)
        except PermissionError:
            time.sleep(0.05)
    os.replace(source, target)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn what the system refuses within into ``WriteError``.

    Raises
    ------
    WriteError
        If ``path`` cannot be written.
    """
    try:
        yield
    except WriteError:
        raise
    except (OSError, RuntimeError) as error:
        raise WriteError(
            f"{path} cannot be written: {error}. What was there before is kept; make room or give "
            "another place."
        ) from error


def require_writable(path: Path) -> None:
    """Raise ``InputError`` if ``path`` cannot be written, before any work is done."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist. Make it first.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the name of a file.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: the folder {folder} may not be written to.")
    if (length := len(os.fsencode(path.name))) > LONGEST_NAME:
        raise InputError(
            f"{path.name:.40}... has a name of {length} bytes: give one of at most {LONGEST_NAME}."
        )
