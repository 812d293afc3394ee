"""What the system does to files: write, sync, rename, refuse; refusals get a name."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from laplace_metric.errors import FileFormatError, WriteError


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
    """Whether ``path`` is a folder and not a link to one."""
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
    """What the system refuses within becomes ``WriteError``.

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
