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
from laplace_metric.errors import InputError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step; interrupted, the old file (or none) is there.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with writing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A file to write to, which becomes ``path`` at the end, unless there was an error.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with named_errors(path), hidden_folder(path.parent, path.name) as hidden:
        temporary = hidden / "content"
        with readable(temporary):
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


def json_text(content: Any) -> str:
    """Indented JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(content), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
