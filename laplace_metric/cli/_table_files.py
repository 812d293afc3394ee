"""Tables as files: columns as .csv or .json."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from laplace_metric.io import json_text, write_atomically

Columns = Mapping[str, list[Any]]


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """Return one mapping a row.

    Examples
    --------
    >>> rows_of({"a": [1, 2], "b": ["x", "y"]})
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]
    """
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def write_table(path: Path, columns: Columns) -> None:
    """Write columns as .csv or .json."""
    write_atomically(path, TABLE_WRITERS[path.suffix](columns))


def csv_text(columns: Columns) -> str:
    """Return a CSV in which no cell is a formula."""
    lines = []
    for row in (columns, *zip(*columns.values(), strict=True)):
        text = io.StringIO(newline="")
        csv.writer(text).writerow(map(_defused, row))  # quotes \r and \n, as its line ends in them
        lines.append(text.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What begins a formula in a spreadsheet, also in its full-width form, or hides one."""


def _defused(value: Any) -> Any:
    """Escape a cell so that spreadsheets do not evaluate it, unless it is a number.

    Examples
    --------
    >>> _defused("=1+1"), _defused("-3.5"), _defused("cat")
    ("'=1+1", '-3.5', 'cat')
    """
    if not isinstance(value, str) or not value.lstrip(" ").startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value if value == value.strip() else f"'{value}"


TABLE_WRITERS: dict[str, Callable[[Columns], str]] = {
    ".csv": csv_text,
    ".json": lambda columns: json_text(rows_of(columns)),
}
