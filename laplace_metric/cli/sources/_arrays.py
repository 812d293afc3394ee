"""Precomputed embeddings [N, D]: .npy, .npz, .safetensors."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from laplace_metric._utils.archives import DAMAGE, check_npy, check_zip
from laplace_metric._utils.files import digest
from laplace_metric._utils.names import utf8_path
from laplace_metric.cli.sources._source import ARRAYS, Notify, ReadOptions, Source, require_items
from laplace_metric.errors import FileFormatError, InputError, LabelError

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
    if embeddings.ndim != 2 or not _numeric(embeddings):
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
    items = _items(values)
    if len(items) != n or any(isinstance(item, list) for item in items):
        raise LabelError(f"{path}: {len(items)} {what} for {n} rows. Give one a row.")
    if any(isinstance(item, float) for item in items):
        raise LabelError(f"{path}: {what} are fractions. Give whole numbers or names.")
    names = tuple("" if item is None else str(item) for item in items)
    if "" in names:
        row = names.index("") + 1
        raise LabelError(f"{path}: {what} has nothing for row {row}. Fill it in.")
    return names


def _items(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray) and values.dtype.kind == "S":
        values = values.astype(str)
    return values.tolist() if isinstance(values, (np.ndarray, Tensor)) else list(values)


def _numeric(values: Any) -> bool:
    if isinstance(values, Tensor):
        return not values.is_complex() and values.dtype != torch.bool
    return values.dtype.kind in "fiu"


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
