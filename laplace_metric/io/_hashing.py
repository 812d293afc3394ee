"""Hashes that tell one content from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from laplace_metric.io._atomic import only_regular

if TYPE_CHECKING:
    from torch import Tensor


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    sha256 = hashlib.sha256()
    with open(path, "rb", opener=only_regular) as file:
        while block := file.read(2**20):
            sha256.update(block)
    return sha256.hexdigest()


def digest(text: str, tensors: Iterable[Tensor] = ()) -> str:
    """Return the sha256 of a text, then of tensors in order, with their shapes and dtypes.

    Names of the tensors, where they matter, belong into the text.

    Parameters
    ----------
    text : str
        Text to hash first.
    tensors : iterable of Tensor
        Tensors to hash after it. Default: none.

    Examples
    --------
    >>> import torch
    >>> digest("a", [torch.zeros(2)]) == digest("a", [torch.zeros(2, 1)])
    False
    """
    import torch

    sha256 = hashlib.sha256(text.encode())
    for tensor in tensors:
        sha256.update(f"|{tuple(tensor.shape)} {tensor.dtype}|".encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        sha256.update(content.numpy().data)
    return sha256.hexdigest()


def content_digest(value: Any) -> str:
    """Return the first 16 digits of the sha256 of a dataclass: of all its values, at any depth.

    Numbers of arrays count by their value, not by their type, so that a value has the same digest
    before and after a file.

    Parameters
    ----------
    value : dataclass
        Value whose fields hold numbers, texts, None, arrays, sequences, mappings and dataclasses.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: np.ndarray
    >>> one, other = Point(np.ones(2)), Point(np.ones(2, bool))
    >>> content_digest(one) == content_digest(other), content_digest(Point(np.zeros(2)))[:4]
    (True, 'bfae')
    """
    sha256 = hashlib.sha256()
    _update(sha256, value)
    return sha256.hexdigest()[:16]


def _update(sha256: Any, value: Any) -> None:
    """Add a value to a hash, with what tells its kind and its length."""
    if is_dataclass(value):
        sha256.update(type(value).__name__.encode())
        for each in fields(value):
            sha256.update(f"|{each.name}:".encode())
            _update(sha256, getattr(value, each.name))
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        sha256.update(str(value.shape).encode())
        sha256.update(np.ascontiguousarray(value, np.float64))
    elif isinstance(value, Mapping):
        _update(sha256, sorted(value.items()))
    elif isinstance(value, (list, tuple, np.ndarray)):
        sha256.update(f"[{len(value)}]".encode())
        for entry in value.tolist() if isinstance(value, np.ndarray) else value:
            _update(sha256, entry)
    else:
        plain = value.item() if isinstance(value, np.generic) else value
        sha256.update(json.dumps(plain).encode())
