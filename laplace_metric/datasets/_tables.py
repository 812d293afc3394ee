"""Tables that list images and their classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from laplace_metric._utils.tables import TABLES, read_columns, shown_columns
from laplace_metric.errors import InputError, LabelError


def check_listed(table: Path, names: list[str]) -> list[str]:
    """Return the paths of a table, if each is a file, as seen from its folder, and stands once.

    Raises
    ------
    InputError
        If one is not a file or stands twice; the message names the row.
    """
    if not names:
        raise InputError(f"{table} holds no row.")
    for row, name in enumerate(names, 1):
        if not name or not (table.parent / name).is_file():
            raise InputError(
                f"{table}, row {row}: {table.parent / name} is no file. Paths are as seen from "
                "the folder of the table."
            )
    twice, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"{table} names {twice} twice. Leave one of the rows out.")
    return names


def column_of(
    table: Path, header: Collection[str], option: str, named: str | None, usual: Sequence[str]
) -> str | None:
    """Return the column that an option names; else the first one that has a usual name.

    Raises
    ------
    InputError
        If there is no column of that name.
    """
    if named is not None and named not in header:
        raise InputError(
            f"{option}={named!r}: {table} has no such column; its columns: {shown_columns(header)}."
        )
    return named or next((name for name in usual if name in header), None)


PATHS = ("path", "image")
"""Columns that may hold the paths of images."""
LABEL = "label"
"""Column that may hold their classes."""


def listed_images(
    table: Path, path_column: str | None, label_column: str | None
) -> tuple[list[str], list[str] | None]:
    """Return paths and labels of a table; None for the labels if it has no column of them."""
    if not table.exists():
        raise InputError(f"path={str(table)!r} does not exist: pass a folder, or a .csv of paths.")
    if table.suffix.lower() not in TABLES:
        raise InputError(f"path={str(table)!r} is no folder: pass one, or a .csv or .tsv of paths.")
    columns = read_columns(table)
    paths = column_of(table, columns, "path_column", path_column, PATHS)
    label = column_of(table, columns, "label_column", label_column, (LABEL,))
    if paths is None:
        raise InputError(
            f"{table} has no column {' or '.join(map(repr, PATHS))}: name the one that holds the "
            f"paths with path_column; its columns: {shown_columns(columns)}."
        )
    ids = check_listed(table, columns[paths])
    if label is None:
        return ids, None
    labels = columns[label]
    if "" in labels:
        number = labels.index("") + 1
        raise LabelError(f"{table}: row {number} has an empty label. Fill it in, or leave it out.")
    return ids, labels
