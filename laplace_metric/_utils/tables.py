"""Tables: of a text file, and columns as a data frame where pandas is installed."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from laplace_metric.errors import InputError, MissingPackageError

if TYPE_CHECKING:
    import pandas

TABLES = (".csv", ".tsv")
SEPARATORS = (",", "\t", ";")
"""Characters between the columns of a .csv, of a .tsv, and of what some spreadsheets call a CSV."""
MISSING = ("", "nan", "none", "null", "na", "n/a", "<na>")
"""Cells without a value, in lower case."""


def as_pandas(columns: dict[str, np.ndarray[Any, Any]]) -> pandas.DataFrame:
    """Return a table of these columns.

    Raises
    ------
    MissingPackageError
        Without pandas.
    """
    try:
        import pandas
    except ImportError as error:
        install = "pip install pandas"
        raise MissingPackageError("pandas", "to_pandas()", install) from error
    return pandas.DataFrame(columns)


def read_columns(path: Path) -> dict[str, list[str]]:
    """Read the cells of each column of a .csv or .tsv; of two with one name, of the first.

    Raises
    ------
    InputError
        If its columns are separated by another character, a row has another number of fields, or it
        is no text file.
    """
    delimiter = SEPARATORS[path.suffix.lower() == ".tsv"]
    rows = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(lines, [])
            _check_separator(path, header, delimiter)
            for row in lines:
                if row and len(row) != len(header):
                    raise InputError(
                        f"{path}, line {lines.line_num}: {len(row)} fields where the first line "
                        f"has {len(header)}. Put texts that hold a {delimiter!r} in quotes."
                    )
                rows += [row] if row else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a UTF-8 table: {error}.") from error
    places = {name: header.index(name) for name in header}
    return {name: [row[place] for row in rows] for name, place in places.items()}


def _check_separator(path: Path, header: list[str], expected: str) -> None:
    """Refuse a table whose first line is one field, of names that another character separates.

    Raises
    ------
    InputError
        With both characters.
    """
    if len(header) != 1:
        return
    for found in SEPARATORS:
        names = header[0].split(found)
        if found == expected or len(names) < 2 or not all(x and x == x.strip() for x in names):
            continue
        how = f"Write it with {expected!r}, and with '.' in numbers"
        if found != ";":
            name = path.with_suffix(TABLES[found == "\t"]).name
            how = f"Name it {name}, or write it with {expected!r}"
        raise InputError(
            f"{path} has {found!r} between its columns, and a {path.suffix.lower()} is read with "
            f"{expected!r} between them. {how}."
        )


def require_table(path: Path) -> None:
    """Check that a path is a table, without reading it.

    Raises
    ------
    InputError
        If there is no such file.
    """
    if not path.is_file() or path.suffix.lower() not in TABLES:
        raise InputError(f"{path} is no table: give a .csv or .tsv that exists.")


def read_table(path: Path, needed: Mapping[str, str]) -> dict[str, list[str]]:
    """Read the columns of a .csv or .tsv that has rows.

    ``needed`` are the names of columns that must be there, each with the option that names it, or
    "" if there is none.

    Raises
    ------
    InputError
        If there is no such file, column or row.
    """
    require_table(path)
    columns = read_columns(path)
    for name, option in needed.items():
        if name not in columns:
            remedy = option and f". Name it with {option}"
            listed = shown_columns(columns)
            raise InputError(f"{path} has no column {name!r}{remedy}; its columns: {listed}.")
        if not columns[name]:
            raise InputError(f"{path} holds no row.")
    return columns


def filled_cells(path: Path, column: str, cells: Iterable[str]) -> list[str]:
    """Return the cells of a column without the blanks around them.

    Raises
    ------
    InputError
        If one is empty, or says that its value is missing.
    """
    found = [cell.strip() for cell in cells]
    for row, cell in enumerate(found, 1):
        if cell.lower() in MISSING:
            raise InputError(f"{path}: {column} of row {row} is {cell or 'empty'}.")
    return found


def shown_columns(header: Collection[str]) -> str:
    """Return the names of columns, for an error."""
    return ", ".join(map(repr, header)) or "none"
