"""Files of embeddings [N, D] and tables of texts or images: arrays, .csv, .parquet."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from laplace_metric._utils.archives import DAMAGE, check_npy, check_size, check_zip
from laplace_metric._utils.names import utf8_path
from laplace_metric._utils.tables import read_table
from laplace_metric.cli.sources._images import given_texts, listed_images
from laplace_metric.cli.sources._source import (
    ARRAYS,
    Notify,
    ReadOptions,
    Source,
    require_items,
)
from laplace_metric.errors import FileFormatError, InputError, LabelError, MissingPackageError
from laplace_metric.io import digest

NAMES = ("embeddings", "labels", "ids")
HASHED_ROWS = 1000
"""As many are hashed at once."""


def npy_source(path: Path, options: ReadOptions, notify: Notify) -> Source:
    """An array [N, D], mapped rather than read; labels from ``options.labels``."""
    labels = None if options.labels is None else _read_labels(options.labels)
    return array_source(path, _load(path, mmap_mode="r"), labels, None)


def npz_source(path: Path, options: ReadOptions, notify: Notify) -> Source:
    """Arrays ``embeddings``, and if the file has them ``labels`` and ``ids``."""
    with _load(path) as file:
        names = file.files
        arrays = {n: _checked(path, partial(file.__getitem__, n)) for n in names if n in NAMES}
    return _source_of(path, arrays, names, options)


def safetensors_source(path: Path, options: ReadOptions, notify: Notify) -> Source:
    """Tensors ``embeddings`` and ``labels``; ids and names of classes from JSON in the header.

    Raises
    ------
    FileFormatError
        If it is no safetensors file, or its header is damaged.
    """
    try:
        with utf8_path(path) as opened, safe_open(opened, framework="pt") as file:
            names = list(file.keys())
            arrays = {name: file.get_tensor(name) for name in names if name in NAMES}
            header = file.metadata() or {}
    except (*DAMAGE, SafetensorError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error
    try:
        if "ids" in header:
            arrays["ids"] = list(json.loads(header["ids"]))
        if "classes" in header and "labels" in arrays:
            classes = dict(enumerate(json.loads(header["classes"])))
            arrays["labels"] = [classes[number] for number in arrays["labels"].tolist()]
    except (*DAMAGE, KeyError) as error:
        raise FileFormatError(f"{path}: its header is damaged: {error}.") from error
    return _source_of(path, arrays, names, options)


def array_source(path: Path, embeddings: Any, labels: Any, ids: Any) -> Source:
    """From arrays, tensors or lists.

    Raises
    ------
    InputError
        If embeddings are not numbers [N, D].
    LabelError
        If labels or ids are not N.
    """
    if isinstance(embeddings, Tensor):
        numeric = not embeddings.is_complex() and embeddings.dtype != torch.bool
    else:
        numeric = embeddings.dtype.kind in "fiu"
    if embeddings.ndim != 2 or not numeric:
        shape, kind = tuple(embeddings.shape), embeddings.dtype
        raise InputError(f"{path} holds {kind} of shape {shape}: embeddings are numbers [N, D].")
    n = len(embeddings)
    require_items(path, n, "row")
    return Source(
        path,
        ARRAYS,
        _strings(path, "ids", ids, n) or tuple(f"row {row + 1}" for row in range(n)),
        _strings(path, "labels", labels, n),
        lambda rows: _tensor(embeddings, rows),
        _fingerprint(embeddings),
        {},
    )


def _source_of(
    path: Path, arrays: dict[str, Any], names: Sequence[str], options: ReadOptions
) -> Source:
    if "embeddings" not in arrays:
        listed = ", ".join(map(repr, names)) or "none"
        raise InputError(f"{path} holds no array 'embeddings'; its arrays: {listed}.")
    labels = arrays.get("labels") if options.labels is None else _read_labels(options.labels)
    return array_source(path, arrays["embeddings"], labels, arrays.get("ids"))


def _load(path: Path, **options: Any) -> Any:
    def load() -> Any:
        check_zip(path) if zipfile.is_zipfile(path) else check_npy(path)
        return np.load(path, allow_pickle=False, **options)

    return _checked(path, load)


def _checked(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except DAMAGE as error:
        raise FileFormatError(
            f"{path} cannot be read as arrays of numbers or strings: {error}."
        ) from error


def _read_labels(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"--labels {path} is not a file.")
    if path.suffix.lower() == ".npy":
        return _load(path)
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"--labels {path}: end it in .npy, or write one label a line.") from error


def _strings(path: Path, what: str, values: Any, n: int) -> tuple[str, ...] | None:
    if values is None:
        return None
    if isinstance(values, np.ndarray) and values.dtype.kind == "S":
        values = values.astype(str)
    items = values.tolist() if isinstance(values, (np.ndarray, Tensor)) else list(values)
    if len(items) != n or any(isinstance(item, list) for item in items):
        raise LabelError(f"{path}: {len(items)} {what} for {n} rows. Give one a row.")
    if any(isinstance(item, float) for item in items):
        raise LabelError(f"{path}: {what} are fractions. Give whole numbers or names.")
    names = tuple("" if item is None else str(item) for item in items)
    if "" in names:
        row = names.index("") + 1
        raise LabelError(f"{path}: {what} has nothing for row {row}. Fill it in.")
    return names


def _tensor(values: Any, rows: Sequence[int]) -> Tensor:
    """The rows as float32, or float64 where they are that."""
    selected = values[list(rows)]
    if isinstance(selected, Tensor):
        return selected if selected.dtype == torch.float64 else selected.float()
    wide = selected.dtype == np.float64
    return torch.from_numpy(selected.astype(np.float64 if wide else np.float32))


def _fingerprint(values: Any) -> str:
    n, step = len(values), HASHED_ROWS
    blocks = (_tensor(values, range(k, min(k + step, n))) for k in range(0, n, step))
    return digest(str(tuple(values.shape)), blocks)


# Tables, one item a row: texts, or paths of images; Parquet with a list column ``embedding``.


COLUMNS = {"text": "text_column", "label": "label_column", "id": "id_column"}
"""What a column holds, which is also its default name, and the option that names it."""
EMBEDDING = "embedding"
PATHS = ("path", "image")
"""Columns of a table without texts that may hold paths of images."""


Column = Callable[[str], list[str]]
"""Name of a column -> its cells, empty ones for null."""


def csv_source(path: Path, options: ReadOptions, notify: Notify) -> Source:
    """UTF-8 with a line of column names; commas, or tabs in a .tsv.

    Raises
    ------
    InputError
        If there is no such column, a row has another number of fields, or it is no text file.
    """
    header, rows = read_table(path)

    def column(name: str) -> list[str]:
        place = header.index(name)
        return [row[place] for row in rows]

    return _table_source(path, header, column, options, notify)


def _table_source(
    path: Path, header: Sequence[str], column: Column, options: ReadOptions, notify: Notify
) -> Source:
    """Texts, or images named by their paths."""
    paths = _image_column(path, header, options)
    names = _column_names(path, header, options, notify, text=paths is None)
    classes = column(names["label"]) if "label" in names else None
    if classes is not None and "" in classes:
        row = classes.index("") + 1
        raise LabelError(f"{path}: row {row} has an empty label. Fill it in, or leave it out.")
    if paths is not None:
        told = {} if options.image_column is None else {"image_column": paths}
        if not told:
            notify(f"{path}: paths of images from column {paths!r}")
        source = listed_images(path, column(paths), classes, options, notify)
        return replace(source, options={**source.options, **told})
    texts = column(names["text"])
    require_items(path, len(texts), "row")
    ids = column(names["id"]) if "id" in names else None
    return replace(
        given_texts(texts, path),
        ids=tuple(ids or (f"row {row + 1}" for row in range(len(texts)))),
        classes=None if classes is None else tuple(classes),
        options={"text_column": names["text"]},
    )


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


def _column_names(
    path: Path, header: Sequence[str], options: ReadOptions, notify: Notify, *, text: bool
) -> dict[str, str]:
    """Names of the columns that hold text, label and id; without an option, the default names."""
    set_names = {what: getattr(options, option) for what, option in COLUMNS.items()}
    names = {what: name or what for what, name in set_names.items() if name or what in header}
    for what, name in names.items():
        if name not in header:
            raise InputError(_no_column(path, what, name, header))
    if text and "text" not in names:
        raise InputError(_no_column(path, "text", "text", header))
    guessed = [f"{what}s from column {what!r}" for what in names if not set_names[what]]
    if guessed:
        notify(f"{path}: {', '.join(guessed)}")
    return names


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

    def read(*names: str) -> Any:
        return _guarded(path, lambda: file.read(columns=list(names)))

    def column(name: str) -> list[str]:
        values = read(name)[name].to_pylist()
        return ["" if value is None else str(value) for value in values]

    if EMBEDDING not in header or options.text_column or options.image_column:
        return _table_source(path, header, column, options, notify)
    names = _column_names(path, header, options, notify, text=False)
    notify(f"{path}: embeddings from column {EMBEDDING!r}")
    names.pop("text", None)
    table = read(EMBEDDING, *names.values())
    lists = {what: table[name].to_pylist() for what, name in names.items()}
    return array_source(path, _matrix(path, table[EMBEDDING]), lists.get("label"), lists.get("id"))


def _parquet_file(path: Path) -> Any:
    parquet = pyarrow("parquet")

    def opened() -> Any:
        file = parquet.ParquetFile(path)
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        check_size(sum(group.total_byte_size for group in groups), path.stat().st_size)
        return file

    return _guarded(path, opened)


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (*DAMAGE, pyarrow("lib").ArrowException) as error:
        raise FileFormatError(f"{path} is not a Parquet file: {error}.") from error


def _matrix(path: Path, column: Any) -> Any:
    """[N, D] of a list column, without a Python object a number."""
    flat = column.combine_chunks()
    if not hasattr(flat, "value_lengths"):
        raise InputError(f"{path}: column {EMBEDDING!r} holds {column.type}, not lists of numbers.")
    lengths = set(np.unique(flat.value_lengths().to_numpy(zero_copy_only=False)).tolist())
    if len(lengths) != 1 or column.null_count:
        raise InputError(f"{path}: column {EMBEDDING!r} needs one list of the same length a row.")
    return flat.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
