"""Image files one behind the other in an npz file, and the JSON of texts beside it."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from PIL import Image
from torch import Tensor

from benchmarks.datasets.formats import Array, decode_square, read_npz
from laplace_metric._utils.archives import DAMAGE
from laplace_metric.errors import FileFormatError


@dataclass(frozen=True, eq=False)
class PackedImages:
    """JPEG or PNG files in one array: file i is ``data[offsets[i]:offsets[i + 1]]``."""

    path: Path
    data: Array
    offsets: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def file(self, row: int) -> bytes:
        """The bytes of one file."""
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def squares(self, rows: Int[Tensor, " n"], size: int) -> UInt8[Tensor, "n 3 size size"]:
        """The centres of some images (`decode_square`); no other file is decoded.

        Raises
        ------
        FileFormatError
            If one is damaged or no image.
        """
        images = torch.empty(len(rows), 3, size, size, dtype=torch.uint8)
        for image, row in zip(images, rows.tolist(), strict=True):
            try:
                image.copy_(decode_square(io.BytesIO(self.file(row)), size))
            except (*DAMAGE, Image.DecompressionBombError) as error:
                raise FileFormatError(
                    f"{self.path} holds a damaged image in row {row} ({error}). Fetch it again."
                ) from error
        return images


def read_packed(path: Path, *fields: str) -> tuple[PackedImages, dict[str, Array]]:
    """The packed images of an npz file, and more of its fields.

    Raises
    ------
    FileFormatError
        If the file is damaged, or the offsets do not cut ``data`` into files.
    """
    table = read_npz(path, "data", "offsets", *fields)
    data = table.pop("data")
    if data.dtype != np.uint8 or data.ndim != 1:
        raise FileFormatError(
            f"{path} holds data {list(data.shape)} of {data.dtype}, not bytes [B] of uint8. "
            "Fetch it again."
        )
    offsets = _offsets(path, table.pop("offsets"))
    if offsets[-1] != len(data):
        raise FileFormatError(
            f"{path} has offsets up to {offsets[-1]} for {len(data)} bytes of data. Fetch it again."
        )
    return PackedImages(path, data, offsets), table


def count_packed(path: Path) -> int:
    """How many images an npz file holds, without reading them."""
    return len(_offsets(path, read_npz(path, "offsets")["offsets"])) - 1


def _offsets(path: Path, offsets: Array) -> Array:
    fits = offsets.ndim == 1 and len(offsets) > 1 and offsets.dtype.kind in "iu"
    if not fits or offsets[0] != 0 or not (offsets[1:] > offsets[:-1]).all():
        raise FileFormatError(
            f"{path} has offsets {list(offsets.shape)} of {offsets.dtype} that are not whole "
            "numbers rising from 0, one more than images. Fetch it again."
        )
    return offsets


def read_rows(path: Path, n_images: int, **kinds: type) -> list[dict[str, Any]]:
    """The JSON list of one object an image; ``kinds`` are fields: str, or list (of str).

    Raises
    ------
    FileFormatError
        If the file is no such list, or its length is not the number of images.
    """
    try:
        rows = json.loads(path.read_bytes())
    except DAMAGE as error:
        raise FileFormatError(f"{path} is not a JSON file ({error}). Fetch it again.") from error
    if not isinstance(rows, list) or len(rows) != n_images:
        size = len(rows) if isinstance(rows, list) else f"a {type(rows).__name__}, not a list"
        raise FileFormatError(
            f"{path} describes {size} where there are {n_images} images. Fetch both files again."
        )
    for number, row in enumerate(rows):
        for field, kind in kinds.items():
            if not isinstance(row, dict) or not _is(row.get(field), kind):
                raise FileFormatError(
                    f"{path} has no {field!r} in row {number}, a "
                    f"{'text' if kind is str else 'list of texts'}. Fetch it again."
                )
    return rows


def _is(value: Any, kind: type) -> bool:
    texts = value if kind is list else [value]
    return isinstance(value, kind) and all(isinstance(text, str) for text in texts)
