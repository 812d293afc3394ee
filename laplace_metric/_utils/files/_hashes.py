"""Hashes that tell one content from another: of files, of JSON, of tensors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric._utils.files._disk import only_regular

SEAL = "json_sha256"
HEAD_BYTES = 2**16
"""As many of a foreign file are hashed where the whole is not."""


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """JSON content with its own sha256, so that every altered value is noticed.

    Examples
    --------
    >>> sealed({"n": 1}) == sealed(sealed({"n": 1}))
    True
    """
    plain = json.loads(json.dumps({k: v for k, v in content.items() if k != SEAL}))
    text = json.dumps(plain, sort_keys=True)
    return {**plain, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def head_of(path: Path) -> list[Any]:
    """Size of a file, and sha256 of its header: all of it but the tensors, or its first bytes."""
    with open(path, "rb", opener=only_regular) as file:
        size, first = os.fstat(file.fileno()).st_size, file.read(8)
        length = int.from_bytes(first, "little") if path.suffix == ".safetensors" else HEAD_BYTES
        head = first + file.read(min(length, size))
    return [size, hashlib.sha256(head).hexdigest()]


def sha256_of(path: Path) -> str:
    """sha256 of a file."""
    sha256 = hashlib.sha256()
    with open(path, "rb", opener=only_regular) as file:
        while block := file.read(2**20):
            sha256.update(block)
    return sha256.hexdigest()


def digest(text: str, tensors: Iterable[Tensor] = ()) -> str:
    """sha256 of a text, then of tensors (any shapes) in order, with their shapes and dtypes.

    Names of the tensors, where they matter, belong into the text.

    Examples
    --------
    >>> digest("a", [torch.zeros(2)]) == digest("a", [torch.zeros(2, 1)])
    False
    """
    sha256 = hashlib.sha256(text.encode())
    for tensor in tensors:
        sha256.update(f"|{tuple(tensor.shape)} {tensor.dtype}|".encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        sha256.update(content.numpy().data)
    return sha256.hexdigest()
