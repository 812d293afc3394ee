"""What the system does to files: write, sync, rename, refuse; refusals get a name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from laplace_metric.errors import FileFormatError, WriteError


def write_synced(path: Path, content: str | bytes) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    sync_file(path)


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
def readable(path: Path) -> Iterator[None]:
    """Readable as the umask says: safetensors makes files that only their owner may read."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o666))
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
