"""Hashes that tell one content from another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

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
