"""A table of texts, one a row: CSV, or the columns that another table holds.

Parquet: a column of texts, or a list column ``embedding``.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from laplace_metric.cli.sources._arrays import array_source
from laplace_metric.cli.sources._source import (
    TEXTS,
    Notify,
    ReadOptions,
    Source,
    digest_of,
    require_items,
)
from laplace_metric.errors import FileFormatError, InputError, LabelError, MissingPackageError

COLUMNS = {"text": "text_column", "label": "label_column", "id": "id_column"}
"""What a column holds, which is also the name that is guessed, and where it is told."""


def csv_source(path: Path, reading: ReadOptions, say: Notify) -> Source:
    """UTF-8 with a line of column names; commas, or tabs in a .tsv.

    Raises
    ------
    InputError
        If there is no such column, a row has another number of fields, or it is no text file.
    """
    header, rows = _table(path)
    chosen = chosen_columns(path, header, reading, say)
    found = {what: [row[header.index(name)] for row in rows] for what, name in chosen.items()}
    return text_source(path, found, chosen)


def chosen_columns(
    path: Path, header: Sequence[str], reading: ReadOptions, say: Notify, needed: str = "text"
) -> dict[str, str]:
    """Names of the columns that hold text, label and id; those that were not told are guessed."""
    told = {what: getattr(reading, option) for what, option in COLUMNS.items()}
    chosen = {what: name or what for what, name in told.items() if name or what in header}
    for what, name in chosen.items():
        if name not in header:
            raise InputError(_no_column(path, what, name, header))
    if needed == "text" and "text" not in chosen:
        raise InputError(_no_column(path, "text", "text", header))
    guessed = [f"{what}s from column {what!r}" for what in chosen if not told[what]]
    if guessed:
        say(f"{path}: {', '.join(guessed)}")
    return chosen


def text_source(path: Path, found: dict[str, list[str]], columns: dict[str, str]) -> Source:
    """From the columns as lists."""
    texts, classes = found["text"], found.get("label")
    require_items(path, len(texts), "row")
    if classes is not None and not all(classes):
        row = classes.index("") + 1
        raise LabelError(f"{path}: row {row} has an empty label. Fill it in, or leave it out.")
    return Source(
        path,
        TEXTS,
        tuple(found.get("id") or (f"row {row + 1}" for row in range(len(texts)))),
        None if classes is None else tuple(classes),
        lambda rows: [texts[row] for row in rows],
        digest_of(texts),
        {"text_column": columns["text"]},
    )


def _table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Column names and rows, as many fields in each."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(lines, [])
            for row in lines:
                if row and len(row) != len(header):
                    raise InputError(
                        f"{path}, line {lines.line_num}: {len(row)} fields where the first line "
                        f"has {len(header)}. Put texts that hold a {delimiter!r} in quotes."
                    )
                rows += [row] if row else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a UTF-8 table: {error}.") from error
    return header, rows


def _no_column(path: Path, what: str, name: str, header: Sequence[str]) -> str:
    there = ", ".join(map(repr, header)) or "none"
    return (
        f"{path} has no column {name!r}. Name the one that holds the {what}s with "
        f"--{COLUMNS[what].replace('_', '-')}; its columns: {there}."
    )


EMBEDDING = "embedding"


def pyarrow(module: str) -> Any:
    """A module of pyarrow.

    Raises
    ------
    MissingPackageError
        If it is not installed.
    """
    try:
        return import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise MissingPackageError("pyarrow", "Parquet", "pip install pyarrow") from error


def parquet_source(path: Path, reading: ReadOptions, say: Notify) -> Source:
    """Embeddings where there is a column ``embedding`` and no --text-column is told, else texts.

    Raises
    ------
    InputError, FileFormatError, MissingPackageError
        If there is no such column, it is no Parquet, or pyarrow is not installed.
    """
    file = _opened(path)
    header = file.schema_arrow.names
    arrays = EMBEDDING in header and reading.text_column is None
    chosen = chosen_columns(path, header, reading, say, needed=EMBEDDING if arrays else "text")
    if not arrays:
        columns = file.read(columns=list(chosen.values())).to_pydict()
        found = {what: list(map(_text, columns[name])) for what, name in chosen.items()}
        return text_source(path, found, chosen)
    say(f"{path}: embeddings from column {EMBEDDING!r}")
    wanted = [chosen[what] for what in ("label", "id") if what in chosen]
    table = file.read(columns=[EMBEDDING, *wanted])
    named = {w: table[chosen[w]].to_pylist() if w in chosen else None for w in ("label", "id")}
    return array_source(path, _matrix(path, table[EMBEDDING]), named["label"], named["id"])


def _opened(path: Path) -> Any:
    parquet, lib = pyarrow("parquet"), pyarrow("lib")
    try:
        return parquet.ParquetFile(path)
    except lib.ArrowInvalid as error:
        raise FileFormatError(f"{path} is not a Parquet file: {error}.") from error


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _matrix(path: Path, column: Any) -> Any:
    """[N, D] of a list column, without a Python object a number."""
    flat = column.combine_chunks()
    lengths = set(np.unique(flat.value_lengths().to_numpy(zero_copy_only=False)).tolist())
    if len(lengths) != 1 or column.null_count:
        raise InputError(f"{path}: column {EMBEDDING!r} needs one list of the same length a row.")
    return flat.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
