"""One JSON a benchmark, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.environment import environment

RESULTS = Path(__file__).parent / "results"


def write_record(name: str, content: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write ``folder/name.json`` with the environment; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"environment": environment(), **content}, indent=1) + "\n")
    os.replace(temporary, path)
    return path


def read_record(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What ``write_record`` wrote."""
    content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return content
