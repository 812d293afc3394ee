from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from benchmarks.datasets import load
from laplace_metric.errors import FileFormatError

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([1, 10, 9, 10, 2, 5], np.uint8)  # as published: 10 stands for 0


def place(folder: Path, split: str, **changed: np.ndarray) -> Path:
    path = folder / f"SVHN/{split}_32x32.mat"
    path.parent.mkdir(exist_ok=True)
    content = {"X": IMAGES.transpose(2, 3, 1, 0), "y": LABELS[:, None], **changed}
    savemat(path, content, do_compression=True)
    return path


@pytest.mark.parametrize("split", ["train", "test"])
def test_images_and_digits(tmp_path: Path, split: str) -> None:
    place(tmp_path, split)
    found = load("svhn", split, tmp_path)
    np.testing.assert_array_equal(found.images.numpy(), IMAGES)
    assert [found.class_names[label] for label in found.labels] == list("109025")
    assert found.name == f"svhn/{split}"
    assert len(found.class_names) == 10


def test_limit_keeps_rows_aligned(tmp_path: Path) -> None:
    place(tmp_path, "train")
    found = load("svhn", "train", tmp_path, limit=3)
    np.testing.assert_array_equal(found.images.numpy(), IMAGES[::2])
    assert found.labels.tolist() == [1, 9, 2]


@pytest.mark.parametrize(
    "changed",
    [
        {"X": IMAGES},
        {"X": IMAGES.transpose(2, 3, 1, 0) / 255},
        {"y": LABELS[:5]},
        {"y": LABELS - 1},
        {"y": LABELS + 1},
        {"y": LABELS + 0.5},
    ],
)
def test_other_content(tmp_path: Path, changed: dict[str, np.ndarray]) -> None:
    place(tmp_path, "train", **changed)
    with pytest.raises(FileFormatError, match=r"train_32x32\.mat is not a file of SVHN"):
        load("svhn", "train", tmp_path)


def test_file_without_labels(tmp_path: Path) -> None:
    savemat(place(tmp_path, "test"), {"X": IMAGES})
    with pytest.raises(FileFormatError, match=r"test_32x32\.mat lacks the variable 'y'"):
        load("svhn", "test", tmp_path)


def test_every_truncation_is_named(tmp_path: Path) -> None:
    path = place(tmp_path, "test")
    whole = path.read_bytes()
    for length in [*range(0, 300, 7), *range(300, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match=r"test_32x32\.mat (is not|lacks)"):
            load("svhn", "test", tmp_path)


@pytest.mark.parametrize("content", [b"nothing", b"\x89HDF\r\n\x1a\n" * 40, b"\xff" * 400])
def test_foreign_files(tmp_path: Path, content: bytes) -> None:
    place(tmp_path, "test").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"test_32x32\.mat is not a whole MATLAB file"):
        load("svhn", "test", tmp_path)
