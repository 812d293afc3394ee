"""Files of arrays: embeddings that are there already."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from laplace_metric._utils.archives import DAMAGE, check_npy, check_zip
from laplace_metric._utils.names import utf8_path
from laplace_metric.cli._source import ARRAYS, ReadOptions, Source
from laplace_metric.errors import FileFormatError, InputError, LabelError
from laplace_metric.io import digest

# Files of arrays: ``embeddings`` [N, D], and where they have them ``labels`` and ``ids``.

READ = ("embeddings", "labels", "ids")
HASHED_ROWS = 1000
"""As many are hashed at once."""


@contextmanager
def _named_damage(path: Path, form: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn what readers raise at damaged or foreign files into ``FileFormatError``."""
    raised: tuple[type[Exception], ...] = (*DAMAGE, *errors)
    try:
        yield
    except raised as error:
        raise FileFormatError(f"{path} cannot be read as {form}: {error}.") from error


def _numpy(path: Path) -> dict[str, Any]:
    """Return one array, mapped rather than read, or those of an archive."""
    with _named_damage(path, "arrays of numbers or strings"):
        check_zip(path) if zipfile.is_zipfile(path) else check_npy(path)
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"embeddings": loaded}
        with loaded:
            return {name: loaded[name] if name in READ else None for name in loaded.files}


def _safetensors(path: Path) -> dict[str, Any]:
    """Return tensors; ids and names of classes come from JSON in the header."""
    form = "a safetensors file"
    with (
        _named_damage(path, form, SafetensorError),
        utf8_path(path) as opened,
        safe_open(opened, framework="pt") as file,
    ):
        names = list(file.keys())
        arrays: dict[str, Any] = {n: file.get_tensor(n) if n in READ else None for n in names}
        header = file.metadata() or {}
    with _named_damage(path, f"{form}, its header is damaged", KeyError):
        if "ids" in header:
            arrays["ids"] = list(json.loads(header["ids"]))
        if "classes" in header and "labels" in arrays:
            classes = dict(enumerate(json.loads(header["classes"])))
            arrays["labels"] = [classes[number] for number in arrays["labels"].tolist()]
    return arrays


ARRAY_FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npy": _numpy,
    ".npz": _numpy,
    ".safetensors": _safetensors,
}


def array_source(path: Path, arrays: dict[str, Any], options: ReadOptions) -> Source:
    """Return the data of arrays, tensors or lists."""
    if "embeddings" not in arrays:
        listed = ", ".join(map(repr, arrays)) or "none"
        raise InputError(f"{path} holds no array 'embeddings'; its arrays: {listed}.")
    embeddings = arrays["embeddings"]
    if isinstance(embeddings, Tensor):
        numeric = not embeddings.is_complex() and embeddings.dtype != torch.bool
    else:
        numeric = embeddings.dtype.kind in "fiu"
    if embeddings.ndim != 2 or not numeric:
        shape, kind = tuple(embeddings.shape), embeddings.dtype
        raise InputError(f"{path} holds {kind} of shape {shape}: embeddings are numbers [N, D].")
    n, step = len(embeddings), HASHED_ROWS
    labels = arrays.get("labels") if options.labels is None else _read_labels(options.labels)
    blocks = (tensor_of(embeddings, range(k, min(k + step, n))) for k in range(0, n, step))
    return Source(
        path,
        ARRAYS,
        strings_of(path, "id", arrays.get("ids"), n) or numbered(n),
        strings_of(path, "label", labels, n),
        lambda rows: tensor_of(embeddings, rows),
        digest(str(tuple(embeddings.shape)), blocks),
        {},
    )


def _read_labels(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"--labels {path} is not a file.")
    if path.suffix.lower() == ".npy":
        return _numpy(path).get("embeddings", ())
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"--labels {path}: end it in .npy, or write one label a line.") from error


def numbered(n: int) -> tuple[str, ...]:
    """Return ids for rows that have none."""
    return tuple(f"row {row + 1}" for row in range(n))


def strings_of(path: Path, what: str, values: Any, n: int) -> tuple[str, ...] | None:
    """Return the id or label of each of n rows, none of them empty; None without values."""
    if n == 0:
        raise InputError(f"{path} holds no row.")
    if values is None:
        return None
    if isinstance(values, np.ndarray) and values.dtype.kind == "S":
        values = values.astype(str)
    items = values.tolist() if isinstance(values, (np.ndarray, Tensor)) else list(values)
    if len(items) != n or any(isinstance(item, list) for item in items):
        raise LabelError(f"{path}: {len(items)} {what}s for {n} rows. Give one a row.")
    if any(isinstance(item, float) for item in items):
        raise LabelError(f"{path}: {what}s are fractions. Give whole numbers or names.")
    names = tuple("" if item is None else str(item) for item in items)
    if "" in names:
        row = names.index("") + 1
        raise LabelError(f"{path}: row {row} has an empty {what}. Fill it in, or leave it out.")
    return names


def tensor_of(values: Any, rows: Sequence[int]) -> Tensor:
    """Return the rows as float32, or as float64 if they are float64."""
    selected = values[list(rows)]
    if isinstance(selected, Tensor):
        return selected if selected.dtype == torch.float64 else selected.float()
    wide = selected.dtype == np.float64
    return torch.from_numpy(selected.astype(np.float64 if wide else np.float32))
