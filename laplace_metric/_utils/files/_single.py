"""One file that is whole or not there."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from laplace_metric._utils.files._disk import named_errors, readable, replace_file, sync_file
from laplace_metric._utils.files._hidden import hidden_folder
from laplace_metric._utils.names import utf8
from laplace_metric.errors import InputError

LONGEST_NAME = 255 - len("..0123456789abcdef.tmp")
"""Bytes of a file name: the hidden folder that the file is written in has a longer one."""


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace ``path`` in one step; interrupted, the old file (or none) is there.

    A text is written as UTF-8, see ``laplace_metric._utils.names``. ``mode``: its permissions, less
    what the umask takes.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with writing(path, mode) as temporary:
        temporary.write_bytes(utf8(content) if isinstance(content, str) else content)


@contextmanager
def writing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A file to write to, which becomes ``path`` at the end, unless there was an error.

    ``mode``: its permissions, less what the umask takes.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with named_errors(path), hidden_folder(path.parent, path.name) as hidden:
        temporary = hidden / "content"
        with readable(temporary, mode):
            yield temporary
        sync_file(temporary)
        replace_file(temporary, path)


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


def json_text(content: Any, *, ascii_only: bool = False) -> str:
    """Indented JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(content), indent=2, ensure_ascii=ascii_only) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
