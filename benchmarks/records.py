"""One JSON a benchmark, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.environment import environment

RESULTS = Path(__file__).parent / "results"


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` make a file that takes its name only when it is finished."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_record(name: str, content: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write ``folder/name.json`` with the environment; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    text = json.dumps({"environment": environment(), **content}, indent=1) + "\n"
    write_whole(path, lambda part: part.write_text(text))
    return path


def read_record(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What ``write_record`` wrote."""
    content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return content
