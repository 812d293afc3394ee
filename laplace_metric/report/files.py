"""Writing results: whole or not at all."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from laplace_metric.errors import InputError


def require_writable(path: Path) -> None:
    """Raise ``InputError`` if ``path`` cannot be written, before any work is done."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist. Make it first.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the name of a file.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: the folder {folder} may not be written to.")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step; interrupted, the old file (or none) is there."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def to_json(content: Any) -> str:
    """Indented JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(content), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
