"""Parquet: a column of texts, or a list column ``embedding``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from laplace_metric.errors import FileFormatError, InputError, MissingPackageError
from laplace_metric.sources.arrays import array_source
from laplace_metric.sources.reading import Reading, Say
from laplace_metric.sources.source import Source
from laplace_metric.sources.texts import chosen_columns, text_source

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


def parquet_source(path: Path, reading: Reading, say: Say) -> Source:
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
