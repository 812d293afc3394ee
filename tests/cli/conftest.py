"""A folder as a user has it: real images by class, and a file that makes the model."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.cli.workshop import write_images, write_model


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    found = load_digits()
    return (found.images * 15.9).astype(np.uint8), found.target


@pytest.fixture(scope="session")
def made_once(digits, tmp_path_factory) -> Iterator[Path]:
    images, labels = digits
    folder = tmp_path_factory.mktemp("workplace")
    write_images(folder / "photos", images[:600], labels[:600])
    write_model(folder, images[600:1200], labels[600:1200], "my_model")
    before = contents(folder)
    yield folder
    assert contents(folder) == before, "a test has written into a file: let it make a new one"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*.p*") if path.is_file()}


@pytest.fixture
def workplace(made_once, tmp_path, monkeypatch) -> Path:
    """The current folder: ``photos`` (600 digits by class), ``my_model.py``, ``weights.pt``.

    Links to the same files: a copy of 600 takes longer than most tests.
    """
    place = tmp_path / "here"
    shutil.copytree(made_once, place, copy_function=os.link)
    monkeypatch.chdir(place)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    return place
