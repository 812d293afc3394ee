"""Folders of photographs with the lists of their authors: birds, cars, faces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from benchmarks.datasets import load
from benchmarks.datasets.formats import read_listed, read_square
from benchmarks.datasets.remotes import Request
from laplace_metric.errors import FileFormatError, InputError


def save(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("upright", [False, True])
def test_the_centre_of_the_longer_side(tmp_path: Path, upright: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 10, 3), dtype=np.uint8)
    turned = pixels.transpose(1, 0, 2) if upright else pixels
    found = read_square(save(tmp_path / "a.png", turned), 4).permute(1, 2, 0)
    expected = pixels[:, 3:7].transpose(1, 0, 2) if upright else pixels[:, 3:7]
    np.testing.assert_array_equal(found.numpy(), expected)


def test_shrinking_averages_and_keeps_the_aspect(tmp_path: Path) -> None:
    """A stripe left of the middle of a picture twice as wide as high."""
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 20:40] = 255, 100, 50
    found = read_square(save(tmp_path / "a.png", pixels), 20)
    assert found[:, 10, 1].tolist() == [255, 100, 50]
    assert found[:, 10, 8].tolist() == [255, 100, 50]
    assert found[:, 10, 12:].max() == 0
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    small = read_square(save(tmp_path / "b.png", noise), 8).float()
    assert small.std() < 0.25 * noise.std()


def test_only_kept_rows_are_decoded(tmp_path: Path) -> None:
    whole = [save(tmp_path / f"{i}.jpg", np.full((9, 9, 3), 40 * i, np.uint8)) for i in range(3)]
    missing = (tmp_path / "missing.jpg", 1)
    listed = [pair for i, path in enumerate(whole) for pair in ((path, 2 * i), missing)]
    found = read_listed(Request("cub200", "train", limit=3, size=5), listed, "abcde")
    assert found.labels.tolist() == [0, 2, 4]
    assert found.images[:, :, 2, 2].tolist() == [[0] * 3, [40] * 3, [80] * 3]
    with pytest.raises(InputError, match=r"missing\.jpg.*not there"):
        read_listed(Request("cub200", "train"), [missing], "abcde")


def test_damaged_files(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path = save(tmp_path / "a.jpg", noise)
    whole = path.read_bytes()
    for content in (b"", b"no image", whole[:20], whole[:400], whole[:-300]):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"a\.jpg.*whole image"):
            read_square(path, 8)


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


# number -> (class, colour); the authors number the images class by class
IMAGES = {
    1: (1, (200, 100, 20)),
    2: (1, (20, 100, 200)),
    3: (100, (10, 250, 40)),
    4: (101, (250, 30, 240)),
    5: (200, (90, 90, 90)),
}


@pytest.fixture
def birds_folder(tmp_path: Path, save_photo: Callable[..., None]) -> Path:
    """The layout of the archive."""
    root = tmp_path / "CUB_200_2011"
    names = {number: f"{number:03d}.Bird_{number}" for number in range(1, 201)}
    paths = {n: f"{names[c]}/Bird_{c}_{n:04d}_796.jpg" for n, (c, _) in IMAGES.items()}
    for number, (_, colour) in IMAGES.items():
        save_photo(root / "images" / paths[number], colour)
    birds_write(root / "classes.txt", names)
    birds_write(root / "images.txt", paths)
    birds_write(root / "image_class_labels.txt", {n: c for n, (c, _) in IMAGES.items()})
    return tmp_path


def birds_write(path: Path, table: dict[int, object]) -> None:
    path.write_text("".join(f"{number} {value}\n" for number, value in table.items()))


@pytest.mark.parametrize(
    ("split", "labels", "numbers"), [("train", [0, 0, 99], [1, 2, 3]), ("test", [100, 199], [4, 5])]
)
def test_birds_first_half_trains(
    birds_folder: Path, split: str, labels: list[int], numbers: list[int]
) -> None:
    found = load("cub200", split, birds_folder, size=6)
    assert found.labels.tolist() == labels
    assert found.images.shape == (len(labels), 3, 6, 6)
    colours = [IMAGES[number][1] for number in numbers]
    np.testing.assert_allclose(found.images[:, :, 3, 3].numpy(), colours, atol=3)
    assert len(found.class_names) == 200
    assert [found.class_names[label][:4] for label in labels] == [f"{n + 1:03d}." for n in labels]


TRAIN = {"Aaron_Guiel": [(200, 100, 20)], "Zico": [(20, 100, 200), (10, 250, 40), (90, 90, 90)]}


TEST = {"Abel_Pacheco": [(250, 30, 240), (5, 5, 200)]}


@pytest.fixture(params=["lfw", "lfw-deepfunneled", "lfw_funneled"])
def faces_folder(
    tmp_path: Path, save_photo: Callable[..., None], request: pytest.FixtureRequest
) -> Path:
    for people, name in ((TRAIN, "peopleDevTrain.txt"), (TEST, "peopleDevTest.txt")):
        for person, colours in people.items():
            for number, colour in enumerate(colours, 1):
                save_photo(tmp_path / request.param / person / f"{person}_{number:04d}.jpg", colour)
        lines = [f"{person}\t{len(colours)}" for person, colours in people.items()]
        (tmp_path / name).write_text("\n".join([str(len(lines)), *lines]))
    return tmp_path


@pytest.mark.parametrize(
    ("split", "people", "labels"), [("train", TRAIN, [0, 1, 1, 1]), ("test", TEST, [0, 0])]
)
def test_split_by_person(
    faces_folder: Path, split: str, people: dict[str, list[tuple[int, int, int]]], labels: list[int]
) -> None:
    found = load("lfw", split, faces_folder, size=6)
    assert found.labels.tolist() == labels
    assert found.class_names == tuple(people)
    colours = [colour for photos in people.values() for colour in photos]
    np.testing.assert_allclose(found.images[:, :, 3, 3].numpy(), colours, atol=3)
    assert found.images.shape == (len(labels), 3, 6, 6)


def test_missing_list_folder_and_image(faces_folder: Path) -> None:
    next(faces_folder.glob("*/Zico/Zico_0003.jpg")).unlink()
    with pytest.raises(InputError, match=r"Zico_0003\.jpg.*not there"):
        load("lfw", "train", faces_folder)
    (faces_folder / "peopleDevTest.txt").unlink()
    advice = r"peopleDevTest\.txt, which is not there.*lfw\.tgz.*peopleDevTest\.txt.*http"
    with pytest.raises(InputError, match=advice):
        load("lfw", "test", faces_folder)
    next(path for path in faces_folder.iterdir() if path.is_dir()).rename(faces_folder / "faces")
    with pytest.raises(InputError, match="needs the folder .*lfw or .*lfw-deepfunneled.*by hand"):
        load("lfw", "train", faces_folder)
