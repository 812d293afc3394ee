"""Image files for the tests of the readers, and a clean environment."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

VARIABLE = "LAPLACE_METRIC_DATA"


@pytest.fixture(autouse=True)
def _own_folder_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's data folder must not answer for a test's."""
    monkeypatch.delenv(VARIABLE, raising=False)


Colour = tuple[int, int, int]


@pytest.fixture
def save_photo() -> Callable[[Path, Colour], None]:
    """Writes a JPEG of 12 x 8 pixels of one colour."""

    def save(path: Path, colour: Colour) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 12, 3), colour, np.uint8)).save(path, "JPEG", quality=95)

    return save


def image_file(colour: Colour, kind: str) -> bytes:
    """An image of 12 x 8 pixels of one colour."""
    stream = io.BytesIO()
    Image.new("RGB", (12, 8), colour).save(stream, kind, quality=95)
    return stream.getvalue()


@pytest.fixture
def save_packed() -> Callable[..., None]:
    """Writes an npz of images of one colour each, one file behind the other."""

    def save(path: Path, colours: Sequence[Colour], kind: str = "PNG", **fields: Any) -> None:
        files = [image_file(colour, kind) for colour in colours]
        content = {
            "data": np.frombuffer(b"".join(files), np.uint8),
            "offsets": np.cumsum([0, *map(len, files)]),
            **fields,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **content)

    return save
