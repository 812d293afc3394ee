"""Image files for the tests of the readers, and a clean environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
