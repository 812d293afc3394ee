from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.datasets import load
from laplace_metric.errors import FileFormatError, InputError

# number -> (class, colour); the authors number the images class by class
IMAGES = {
    1: (1, (200, 100, 20)),
    2: (1, (20, 100, 200)),
    3: (100, (10, 250, 40)),
    4: (101, (250, 30, 240)),
    5: (200, (90, 90, 90)),
}


@pytest.fixture
def folder(tmp_path: Path, save_photo: Callable[..., None]) -> Path:
    """The layout of the archive."""
    root = tmp_path / "CUB_200_2011"
    names = {number: f"{number:03d}.Bird_{number}" for number in range(1, 201)}
    paths = {n: f"{names[c]}/Bird_{c}_{n:04d}_796.jpg" for n, (c, _) in IMAGES.items()}
    for number, (_, colour) in IMAGES.items():
        save_photo(root / "images" / paths[number], colour)
    write(root / "classes.txt", names)
    write(root / "images.txt", paths)
    write(root / "image_class_labels.txt", {n: c for n, (c, _) in IMAGES.items()})
    return tmp_path


def write(path: Path, table: dict[int, object]) -> None:
    path.write_text("".join(f"{number} {value}\n" for number, value in table.items()))


@pytest.mark.parametrize(
    ("split", "labels", "numbers"), [("train", [0, 0, 99], [1, 2, 3]), ("test", [100, 199], [4, 5])]
)
def test_first_half_trains(folder: Path, split: str, labels: list[int], numbers: list[int]) -> None:
    found = load("cub200", split, folder, size=6)
    assert found.labels.tolist() == labels
    assert found.images.shape == (len(labels), 3, 6, 6)
    colours = [IMAGES[number][1] for number in numbers]
    np.testing.assert_allclose(found.images[:, :, 3, 3].numpy(), colours, atol=3)
    assert len(found.class_names) == 200
    assert [found.class_names[label][:4] for label in labels] == [f"{n + 1:03d}." for n in labels]


def test_limit_and_default_size(folder: Path) -> None:
    next((folder / "CUB_200_2011/images").glob("*/*_0005_*")).write_bytes(b"not to be decoded")
    found = load("cub200", "test", folder, limit=1)
    assert found.images.shape == (1, 3, 224, 224)
    assert found.labels.tolist() == [100]
    with pytest.raises(FileFormatError, match=r"Bird_200_0005_796\.jpg is not a whole image"):
        load("cub200", "test", folder)


def test_order_of_the_lines_does_not_matter(folder: Path) -> None:
    path = folder / "CUB_200_2011/image_class_labels.txt"
    path.write_text("\n".join(reversed(path.read_text().splitlines())))
    assert load("cub200", "train", folder, size=4).labels.tolist() == [0, 0, 99]


@pytest.mark.parametrize("name", ["images.txt", "classes.txt", "image_class_labels.txt"])
def test_missing_list(folder: Path, name: str) -> None:
    (folder / "CUB_200_2011" / name).unlink()
    with pytest.raises(InputError, match=rf"{name}, which is not there.*caltech"):
        load("cub200", data=folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("images.txt", b"1 a.jpg\n2", r"images\.txt is not a list of numbered lines"),
        ("images.txt", b"\xff\xd8\xff\xe0", r"images\.txt is not a list of numbered lines"),
        ("images.txt", b"1 a.jpg\n2 b.jpg\n", r"images\.txt and .* do not list the same images"),
        ("classes.txt", b"1 a\n2 b\n", r"classes\.txt has not the classes 1\.\.200"),
        ("image_class_labels.txt", b"1 1\n2 201\n", r"labels\.txt holds the class '201'"),
        ("image_class_labels.txt", b"1 1\n2 0\n", r"labels\.txt holds the class '0'"),
        ("image_class_labels.txt", b"1 1\n2 x\n", r"labels\.txt holds the class 'x'"),
    ],
)
def test_damaged_lists(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / "CUB_200_2011" / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        load("cub200", data=folder)
