"""Files of SVHN, Cars196 and LFW that are cut short, changed, or not those of their authors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from benchmarks.datasets import load
from laplace_metric.errors import FileFormatError, InputError
from tests.benchmarks.datasets.test_photographs import (
    CLASSES,
    COLOURS,
    NAMES,
    PATHS,
    TRAIN,
    annotations,
)
from tests.benchmarks.datasets.test_small_images import SVHN_IMAGES, SVHN_LABELS, svhn_place

MATS = {"svhn": "SVHN/train_32x32.mat", "cars196": "cars196/cars_annos.mat"}


def cars(folder: Path, save_photo: Callable[..., None], **changed: np.ndarray) -> Path:
    """A folder in the layout of the authors, with some variables changed."""
    for path, colour in zip(PATHS, COLOURS, strict=True):
        save_photo(folder / "cars196" / path, colour)
    content = {"annotations": annotations(CLASSES), "class_names": NAMES, **changed}
    savemat(folder / MATS["cars196"], content, do_compression=True)
    return folder


@pytest.fixture(params=MATS)
def whole(request: pytest.FixtureRequest, tmp_path: Path, save_photo: Callable[..., None]):
    """A set with its MATLAB file: name, folder and file."""
    if request.param == "svhn":
        svhn_place(tmp_path, "train")
    else:
        cars(tmp_path, save_photo)
    load(request.param, "train", tmp_path)  # it can be read as it is
    return request.param, tmp_path, tmp_path / MATS[request.param]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.95])
def test_a_file_that_was_cut_short(whole, share: float) -> None:
    name, folder, path = whole
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(FileFormatError, match=r"\.mat .*(not a whole.*file|lacks the var)"):
        load(name, "train", folder)


@pytest.mark.parametrize("content", [b"<html>404 Not Found</html>" * 20, b"\x89HDF\r\n\x1a\n" * 99])
def test_a_file_of_another_kind(whole, content: bytes) -> None:
    """A page of an error in its place; MATLAB 7.3, which SciPy does not read."""
    name, folder, path = whole
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"is not a whole MATLAB file .*Fetch it again"):
        load(name, "train", folder)


def test_a_variable_that_is_not_there(whole) -> None:
    name, folder, path = whole
    savemat(path, {"other": np.zeros(3)}, do_compression=True)
    field = {"svhn": "X", "cars196": "annotations"}[name]
    with pytest.raises(FileFormatError, match=f"lacks the variable '{field}'"):
        load(name, "train", folder)


def test_rows_of_svhn_that_are_asked_for(tmp_path: Path) -> None:
    """Labels may be a row as well as a column."""
    svhn_place(tmp_path, "train", y=SVHN_LABELS[None])
    found = load("svhn", "train", tmp_path)
    np.testing.assert_array_equal(found.images.numpy(), SVHN_IMAGES)
    assert found.labels.tolist() == (SVHN_LABELS % 10).tolist()


TWO = annotations(CLASSES)
TWO[0, 1]["class"] = np.uint8([[1, 2]])
UNNAMED = np.empty((1, len(CLASSES)), [("fname", object), ("class", object)])
UNNAMED[0, :] = [(path, np.uint8([[1]])) for path in PATHS]  # as in the later "devkit"
BROKEN = {
    "195 names": ({"class_names": NAMES[:, :195]}, "names 195 classes, not 196"),
    "class 0": ({"annotations": annotations([0, *CLASSES[1:]])}, r"classes other than 1\.\.196"),
    "class 197": ({"annotations": annotations([197, *CLASSES[1:]])}, r"other than 1\.\.196"),
    "two classes": ({"annotations": TWO}, "where one value belongs"),
    "other fields": ({"annotations": UNNAMED}, "without relative_im_path and class"),
    "no structure": ({"annotations": np.ones((1, 5))}, "without relative_im_path and class"),
}


@pytest.mark.parametrize(("changed", "message"), BROKEN.values(), ids=BROKEN)
def test_annotations_of_cars_that_are_not_the_authors(
    tmp_path: Path, save_photo: Callable[..., None], changed: dict[str, np.ndarray], message: str
) -> None:
    cars(tmp_path, save_photo, **changed)
    with pytest.raises(FileFormatError, match=rf"cars_annos\.mat .*{message}"):
        load("cars196", "train", tmp_path)


def test_the_later_layout_of_cars_is_named_as_missing(tmp_path: Path) -> None:
    (tmp_path / "cars196/devkit").mkdir(parents=True)
    savemat(tmp_path / "cars196/devkit/cars_train_annos.mat", {"annotations": UNNAMED})
    with pytest.raises(InputError, match=r"cars_annos\.mat, which is not there"):
        load("cars196", "train", tmp_path)


def test_photographs_of_cars_that_are_missing_or_damaged(
    tmp_path: Path, save_photo: Callable[..., None]
) -> None:
    cars(tmp_path, save_photo)
    photo = tmp_path / "cars196" / PATHS[0]
    photo.write_bytes(photo.read_bytes()[:40])
    with pytest.raises(FileFormatError, match=photo.name):
        load("cars196", "train", tmp_path, size=6)
    photo.unlink()
    with pytest.raises(InputError, match=f"{photo.name} is listed but not there"):
        load("cars196", "train", tmp_path, size=6)


@pytest.fixture
def faces(tmp_path: Path, save_photo: Callable[..., None]) -> Path:
    for person, colours in TRAIN.items():
        for number, colour in enumerate(colours, 1):
            save_photo(tmp_path / "lfw" / person / f"{person}_{number:04d}.jpg", colour)
    (tmp_path / "peopleDevTrain.txt").write_text("2\nAaron_Guiel\t1\nZico\t3\n")
    load("lfw", "train", tmp_path)
    return tmp_path


LISTS = {
    "no number": (b"Aaron_Guiel\t1\nZico\t3\n", "is not a list of persons"),
    "no tab": (b"2\nAaron_Guiel 1\nZico\t3\n", "is not a list of persons"),
    "no count": (b"2\nAaron_Guiel\tone\nZico\t3\n", "is not a list of persons"),
    "three columns": (b"2\nAaron_Guiel\t1\t4\nZico\t3\n", "is not a list of persons"),
    "binary": (b"2\n\xff\xfe\x00\t1\n", "is not a list of persons"),
    "empty": (b"", "is not a list of persons"),
    "cut short": (b"2\nAaron_Guiel\t1\n", "announces 2 persons and lists 1"),
    "a person twice": (b"2\nZico\t3\nZico\t3\n", "announces 2 persons and lists 1"),
}


@pytest.mark.parametrize(("content", "message"), LISTS.values(), ids=LISTS)
def test_lists_of_faces(faces: Path, content: bytes, message: str) -> None:
    (faces / "peopleDevTrain.txt").write_bytes(content)
    with pytest.raises(FileFormatError, match=rf"peopleDevTrain\.txt {message}"):
        load("lfw", "train", faces)


def test_lists_of_faces_with_the_ends_of_lines_of_windows(faces: Path) -> None:
    (faces / "peopleDevTrain.txt").write_bytes(b"2\r\nAaron_Guiel\t1\r\nZico\t3\r\n")
    assert load("lfw", "train", faces, size=6).labels.tolist() == [0, 1, 1, 1]
