"""The line of a record that says for which library its numbers were confirmed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.definitions import library
from benchmarks.records import GIT, write_whole
from laplace_metric import __version__
from laplace_metric.errors import InputError

FIELD = "confirmed"
START = f' "{FIELD}": '


def digest(record: Mapping[str, Any]) -> str:
    """Return the hash of everything in a record but its confirmation."""
    rest = {name: value for name, value in record.items() if name != FIELD}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def is_confirmed(record: Mapping[str, Any], module: str) -> bool:
    """Return whether the numbers of a record of ``module`` are confirmed for this library."""
    said = record.get(FIELD)
    return (
        isinstance(said, Mapping)
        and said.get("library") == library(module)
        and said.get("hash") == digest(record)
    )


def confirm_record(
    path: Path, module: str, read: Mapping[str, Any], compared: Mapping[str, Any]
) -> None:
    """Write the line into the file of a record, and leave every other byte as it is.

    Parameters
    ----------
    path : Path
    module : str
        Module that makes it.
    read : dict
        The record as it was when it was compared.
    compared : dict
        What was found equal, as JSON: it stands in the line.

    Raises
    ------
    InputError
        If the file is no longer what was ``read``.
    """
    text = path.read_text()
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith(START)]
    record = json.loads("".join(lines))
    if digest(record) != digest(read) or lines[0] != "{\n":
        raise InputError(f"{path.name} was changed while it was compared: confirm it again.")
    said = {
        "library": library(module),
        "version": __version__,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "git": GIT["git"],
        **compared,
        "hash": digest(record),
    }
    lines.insert(1, f"{START}{json.dumps(said)},\n")
    write_whole(path, lambda part: part.write_text("".join(lines)))
