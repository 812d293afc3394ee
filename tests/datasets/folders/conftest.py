"""Folders of pictures, written to disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A picture of noise of its own at a path below ``tmp_path``."""

    def picture(name: str, sides: tuple[int, int] = (6, 4), mode: str = "RGB", **how) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        g = np.random.default_rng(len(name) + sum(map(ord, name)))
        shape = (sides[1], sides[0], len(mode)) if len(mode) > 1 else (sides[1], sides[0])
        Image.fromarray(g.integers(0, 256, shape, dtype=np.uint8), mode).save(path, **how)
        return path

    return picture


@pytest.fixture
def photos(write: Write, tmp_path: Path) -> Path:
    """Three dogs and two cats."""
    for name in ("dog/1.png", "dog/2.png", "dog/2024/3.png", "cat/1.png", "cat/2.png"):
        write(f"photos/{name}")
    return tmp_path / "photos"
