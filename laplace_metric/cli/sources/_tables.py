"""Tables, one item a row: texts, or paths of images; Parquet with a list column ``embedding``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from laplace_metric._utils.archives import DAMAGE, check_size
from laplace_metric._utils.files import digest
from laplace_metric._utils.tables import read_table
from laplace_metric.cli.sources._arrays import array_source
from laplace_metric.cli.sources._paths import listed_images
from laplace_metric.cli.sources._source import TEXTS, Notify, ReadOptions, Source, require_items
from laplace_metric.errors import FileFormatError, InputError, LabelError, MissingPackageError

COLUMNS = {"text": "text_column", "label": "label_column", "id": "id_column"}
"""What a column holds, which is also its default name, and the option that names it."""
EMBEDDING = "embedding"
PATHS = ("path", "image")
"""Columns of a table without texts that may hold paths of images."""


def csv_source(path: Path, options: ReadOptions, notify: Notify) -> Source:
    """UTF-8 with a line of column names; commas, or tabs in a .tsv.

    Raises
    ------
    InputError
        If there is no such column, a row has another number of fields, or it is no text file.
    """
    header, rows = read_table(path)
    paths = _image_column(path, header, options)
    names = _column_names(path, header, options, notify, "text" if paths is None else paths)
    if paths is not None:
        names = {"label": names["label"]} if "label" in names else {}
        names["path"] = paths
    columns = {what: [row[header.index(name)] for row in rows] for what, name in names.items()}
    if paths is not None:
        return _image_table(path, columns, paths, options, notify)
    return _text_source(path, columns, names["text"])


def _image_column(path: Path, header: Sequence[str], options: ReadOptions) -> str | None:
    """The column that holds paths of images; None for a table of texts or embeddings."""
    if options.image_column is not None:
        if options.image_column not in header:
            listed = ", ".join(map(repr, header)) or "none"
            raise InputError(
                f"{path} has no column {options.image_column!r}, which --image-column names; its "
                f"columns: {listed}."
            )
        return options.image_column
    if options.text_column is not None or {"text", EMBEDDING} & set(header):
        return None
    return next((name for name in PATHS if name in header), None)


def _image_table(
    path: Path,
    columns: dict[str, list[str]],
    column: str,
    options: ReadOptions,
    notify: Notify,
) -> Source:
    if options.image_column is None:
        notify(f"{path}: paths of images from column {column!r}")
    _check_labels(path, columns.get("label"))
    source = listed_images(path, columns["path"], columns.get("label"), options, notify)
    told = {} if options.image_column is None else {"image_column": column}
    return replace(source, options={**source.options, **told})


def _column_names(
    path: Path, header: Sequence[str], options: ReadOptions, notify: Notify, needed: str = "text"
) -> dict[str, str]:
    """Names of the columns that hold text, label and id; without an option, the default names."""
    set_names = {what: getattr(options, option) for what, option in COLUMNS.items()}
    names = {what: name or what for what, name in set_names.items() if name or what in header}
    for what, name in names.items():
        if name not in header:
            raise InputError(_no_column(path, what, name, header))
    if needed == "text" and "text" not in names:
        raise InputError(_no_column(path, "text", "text", header))
    guessed = [f"{what}s from column {what!r}" for what in names if not set_names[what]]
    if guessed:
        notify(f"{path}: {', '.join(guessed)}")
    return names


def _text_source(path: Path, columns: dict[str, list[str]], text_column: str) -> Source:
    texts, classes = columns["text"], columns.get("label")
    require_items(path, len(texts), "row")
    _check_labels(path, classes)
    return Source(
        path,
        TEXTS,
        tuple(columns.get("id") or (f"row {row + 1}" for row in range(len(texts)))),
        None if classes is None else tuple(classes),
        lambda rows: [texts[row] for row in rows],
        digest(json.dumps(texts)),
        {"text_column": text_column},
    )


def _check_labels(path: Path, classes: list[str] | None) -> None:
    if classes is not None and not all(classes):
        row = classes.index("") + 1
        raise LabelError(f"{path}: row {row} has an empty label. Fill it in, or leave it out.")


def _no_column(path: Path, what: str, name: str, header: Sequence[str]) -> str:
    names = ", ".join(map(repr, header)) or "none"
    images = ", or that of paths of images with --image-column" if what == "text" else ""
    return (
        f"{path} has no column {name!r}. Name the one that holds the {what}s with "
        f"--{COLUMNS[what].replace('_', '-')}{images}; its columns: {names}."
    )


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


def parquet_source(path: Path, options: ReadOptions, notify: Notify) -> Source:
    """Embeddings if there is a column ``embedding`` and no other is named, else texts or images.

    Raises
    ------
    InputError
        If there is no such column.
    FileFormatError
        If it is no Parquet file.
    MissingPackageError
        If pyarrow is not installed.
    """
    file = _parquet_file(path)
    header = file.schema_arrow.names
    paths = _image_column(path, header, options)
    arrays = EMBEDDING in header and options.text_column is None and paths is None
    needed = "text" if not arrays and paths is None else EMBEDDING
    names = _column_names(path, header, options, notify, needed)
    if paths is not None:
        names = {"label": names["label"]} if "label" in names else {}
        names["path"] = paths
        table = _guarded(path, lambda: file.read(columns=list(names.values())).to_pydict())
        columns = {what: list(map(_text, table[name])) for what, name in names.items()}
        return _image_table(path, columns, paths, options, notify)
    if not arrays:
        table = _guarded(path, lambda: file.read(columns=list(names.values())).to_pydict())
        texts = {what: list(map(_text, table[name])) for what, name in names.items()}
        return _text_source(path, texts, names["text"])
    notify(f"{path}: embeddings from column {EMBEDDING!r}")
    names.pop("text", None)
    table = _guarded(path, lambda: file.read(columns=[EMBEDDING, *names.values()]))
    lists = {what: table[name].to_pylist() for what, name in names.items()}
    return array_source(path, _matrix(path, table[EMBEDDING]), lists.get("label"), lists.get("id"))


def _parquet_file(path: Path) -> Any:
    def opened() -> Any:
        file = pyarrow("parquet").ParquetFile(path)
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        check_size(sum(group.total_byte_size for group in groups), path.stat().st_size)
        return file

    return _guarded(path, opened)


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    lib = pyarrow("lib")
    try:
        return read()
    except (*DAMAGE, lib.ArrowException) as error:
        raise FileFormatError(f"{path} is not a Parquet file: {error}.") from error


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _matrix(path: Path, column: Any) -> Any:
    """[N, D] of a list column, without a Python object a number."""
    flat = column.combine_chunks()
    if not hasattr(flat, "value_lengths"):
        raise InputError(f"{path}: column {EMBEDDING!r} holds {column.type}, not lists of numbers.")
    lengths = set(np.unique(flat.value_lengths().to_numpy(zero_copy_only=False)).tolist())
    if len(lengths) != 1 or column.null_count:
        raise InputError(f"{path}: column {EMBEDDING!r} needs one list of the same length a row.")
    return flat.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
