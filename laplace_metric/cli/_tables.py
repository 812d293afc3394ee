"""Columns in a file: .csv, .json or .parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from laplace_metric._utils.files import to_json, write_atomically
from laplace_metric.cli.sources import pyarrow

Columns = Mapping[str, list[Any]]


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """One mapping a row.

    Examples
    --------
    >>> rows_of({"a": [1, 2], "b": ["x", "y"]})
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]
    """
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def write_table(path: Path, columns: Columns) -> None:
    """Write atomically; the end of the name says as what."""
    write_atomically(path, WRITERS[path.suffix](columns))


def _csv(columns: Columns) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows_of(columns))
    return text.getvalue()


def _json(columns: Columns) -> str:
    return to_json(rows_of(columns))


def _parquet(columns: Columns) -> bytes:
    file = io.BytesIO()
    pyarrow("parquet").write_table(pyarrow("lib").Table.from_pydict(dict(columns)), file)
    return file.getvalue()


WRITERS: dict[str, Callable[[Columns], str | bytes]] = {
    ".csv": _csv,
    ".json": _json,
    ".parquet": _parquet,
}
