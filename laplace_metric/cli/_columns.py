"""Columns of a table that a command reads by their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from laplace_metric._utils.tables import read_table
from laplace_metric.errors import InputError


def read_columns(path: Path, needed: Mapping[str, str]) -> dict[str, list[str]]:
    """Read the cells of each column of a .csv or .tsv.

    ``needed`` are the names of columns that must be there, each with the option that names it, or
    "" if there is none.

    Raises
    ------
    InputError
        If there is no such file, column or row.
    """
    if not path.is_file() or path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(f"{path} is no table: give a .csv or .tsv that exists.")
    header, rows = read_table(path)
    for name, option in needed.items():
        if name not in header:
            listed = ", ".join(map(repr, header)) or "none"
            remedy = option and f". Name it with {option}"
            raise InputError(f"{path} has no column {name!r}{remedy}; its columns: {listed}.")
    if not rows:
        raise InputError(f"{path} holds no row.")
    return {name: [row[place] for row in rows] for place, name in enumerate(header)}
