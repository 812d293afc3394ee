from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from benchmarks.datasets import load
from laplace_metric.errors import FileFormatError, InputError

CLASSES = [98, 1, 196, 99, 1]
COLOURS = [(200, 100, 20), (20, 100, 200), (10, 250, 40), (250, 30, 240), (90, 90, 90)]
PATHS = [f"car_ims/{i:06d}.jpg" for i in range(1, 6)]
NAMES = np.array([f"AM General Hummer SUV {i}" for i in range(196)], object)[None]
FIELDS = ("relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test")


def annotations(classes: list[int], paths: list[str] = PATHS) -> np.ndarray:
    """A structure [1, N] with the authors' fields, each cell an array of its own."""
    box = [np.uint16([[side]]) for side in (1, 2, 9, 7)]
    rows = [
        (path, *box, np.uint8([[number]]), np.uint8([[1]]))
        for path, number in zip(paths, classes, strict=True)
    ]
    table = np.empty((1, len(rows)), [(field, object) for field in FIELDS])
    table[0, :] = rows
    return table


@pytest.fixture
def folder(tmp_path: Path, save_photo: Callable[..., None]) -> Path:
    for path, colour in zip(PATHS, COLOURS, strict=True):
        save_photo(tmp_path / "cars196" / path, colour)
    write(tmp_path)
    return tmp_path


def write(folder: Path, **changed: np.ndarray) -> None:
    content = {"annotations": annotations(CLASSES), "class_names": NAMES, **changed}
    savemat(folder / "cars196/cars_annos.mat", content, do_compression=True)


@pytest.mark.parametrize(
    ("split", "labels", "rows"), [("train", [97, 0, 0], [0, 1, 4]), ("test", [195, 98], [2, 3])]
)
def test_first_half_trains(folder: Path, split: str, labels: list[int], rows: list[int]) -> None:
    found = load("cars196", split, folder, size=6)
    assert found.labels.tolist() == labels
    assert found.images.shape == (len(labels), 3, 6, 6)
    colours = [COLOURS[row] for row in rows]
    np.testing.assert_allclose(found.images[:, :, 3, 3].numpy(), colours, atol=3)
    assert found.class_names == tuple(NAMES[0])


def test_limit_and_default_size(folder: Path) -> None:
    (folder / "cars196" / PATHS[3]).write_bytes(b"not to be decoded")
    found = load("cars196", "test", folder, limit=1)
    assert found.images.shape == (1, 3, 224, 224)
    assert found.labels.tolist() == [195]
    with pytest.raises(FileFormatError, match=r"000004\.jpg is not a whole image"):
        load("cars196", "test", folder)


def test_one_annotation(folder: Path) -> None:
    write(folder, annotations=annotations([3], PATHS[:1]))
    assert load("cars196", "train", folder, size=4).labels.tolist() == [2]


def test_missing_image(folder: Path) -> None:
    (folder / "cars196" / PATHS[1]).unlink()
    with pytest.raises(InputError, match=r"000002\.jpg is listed but not there"):
        load("cars196", "train", folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"annotations": annotations([0] * 5)}, r"classes other than 1\.\.196"),
        ({"annotations": annotations([197] * 5)}, r"classes other than 1\.\.196"),
        ({"annotations": np.arange(3)}, "without relative_im_path"),
        (
            {"annotations": np.zeros((1, 2), [("class", "O")])},
            "annotations without relative_im_path",
        ),
        ({"annotations": annotations(CLASSES, [["a", "b"]] * 5)}, "where one value belongs"),
        ({"class_names": NAMES[:, :9]}, "names 9 classes, not 196"),
    ],
)
def test_other_content(folder: Path, changed: dict[str, np.ndarray], message: str) -> None:
    write(folder, **changed)
    with pytest.raises(FileFormatError, match=rf"cars_annos\.mat .*{message}"):
        load("cars196", data=folder)


def test_truncated_annotations(folder: Path) -> None:
    path = folder / "cars196/cars_annos.mat"
    whole = path.read_bytes()
    for length in range(0, len(whole), 61):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match=r"cars_annos\.mat (is not|lacks)"):
            load("cars196", data=folder)
