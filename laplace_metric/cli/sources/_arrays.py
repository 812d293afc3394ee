"""Embeddings [N, D] that are there already: .npy, .npz, .safetensors."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from laplace_metric.cli.sources._source import ARRAYS, Notify, ReadOptions, Source, require_items
from laplace_metric.errors import FileFormatError, InputError, LabelError

HASHED = 1000
"""Rows that are hashed at once."""


def npy_source(path: Path, reading: ReadOptions, say: Notify) -> Source:
    """An array [N, D], mapped rather than read; labels from ``reading.labels``."""
    labels = None if reading.labels is None else _labels_in(reading.labels)
    return array_source(path, _loaded(path, mmap_mode="r"), labels, None)


def npz_source(path: Path, reading: ReadOptions, say: Notify) -> Source:
    """Arrays ``embeddings``, and if there are any ``labels`` and ``ids``."""
    with _loaded(path) as file:
        names = file.files
        arrays = {name: _member(path, file, name) for name in names if name in _NAMES}
    return array_source(path, _embeddings(path, arrays, names), *_rest(arrays, reading))


def safetensors_source(path: Path, reading: ReadOptions, say: Notify) -> Source:
    """Tensors ``embeddings`` and ``labels``; ids and names of classes from JSON in its header."""
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            arrays = {name: file.get_tensor(name) for name in names if name in _NAMES}
            header = file.metadata() or {}
    except SafetensorError as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error
    if "ids" in header:
        arrays["ids"] = json.loads(header["ids"])
    if "classes" in header and "labels" in arrays:
        classes = json.loads(header["classes"])
        arrays["labels"] = [classes[number] for number in arrays["labels"].tolist()]
    return array_source(path, _embeddings(path, arrays, names), *_rest(arrays, reading))


def array_source(path: Path, embeddings: Any, labels: Any, ids: Any) -> Source:
    """From arrays, tensors or lists.

    Raises
    ------
    InputError, LabelError
        If embeddings are not [N, D] numbers, or labels or ids are not N.
    """
    if embeddings.ndim != 2 or not _numeric(embeddings):
        shape, kind = tuple(embeddings.shape), embeddings.dtype
        raise InputError(f"{path} holds {kind} of shape {shape}: embeddings are numbers [N, D].")
    n = len(embeddings)
    require_items(path, n, "row")
    classes, names = _strings(path, "labels", labels, n), _strings(path, "ids", ids, n)
    return Source(
        path,
        ARRAYS,
        names or tuple(f"row {row + 1}" for row in range(n)),
        classes,
        lambda rows: _tensor(embeddings, rows),
        _fingerprint(embeddings),
        {},
    )


_NAMES = ("embeddings", "labels", "ids")


def _rest(arrays: dict[str, Any], reading: ReadOptions) -> tuple[Any, Any]:
    labels = arrays.get("labels") if reading.labels is None else _labels_in(reading.labels)
    return labels, arrays.get("ids")


def _embeddings(path: Path, arrays: dict[str, Any], names: Sequence[str]) -> Any:
    if "embeddings" in arrays:
        return arrays["embeddings"]
    there = ", ".join(map(repr, names)) or "none"
    raise InputError(f"{path} holds no array 'embeddings'; its arrays: {there}.")


def _loaded(path: Path, **options: Any) -> Any:
    return _told(path, lambda: np.load(path, allow_pickle=False, **options))


def _member(path: Path, file: Any, name: str) -> Any:
    return _told(path, lambda: file[name])


def _told(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(
            f"{path} cannot be read as arrays of numbers or strings: {error}."
        ) from error


def _labels_in(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"--labels {path} is not a file.")
    if path.suffix.lower() == ".npy":
        return _loaded(path)
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
    picked = values[list(rows)]
    if isinstance(picked, Tensor):
        return picked if picked.dtype == torch.float64 else picked.float()
    wide = picked.dtype == np.float64
    return torch.from_numpy(picked.astype(np.float64 if wide else np.float32))


def _fingerprint(values: Any) -> str:
    digest = hashlib.sha256(f"{tuple(values.shape)} ".encode())
    for start in range(0, len(values), HASHED):
        rows = range(start, min(start + HASHED, len(values)))
        digest.update(_tensor(values, list(rows)).contiguous().numpy().tobytes())
    return digest.hexdigest()
