from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.datasets import load
from laplace_metric.errors import FileFormatError, InputError

TRAIN = {"Aaron_Guiel": [(200, 100, 20)], "Zico": [(20, 100, 200), (10, 250, 40), (90, 90, 90)]}
TEST = {"Abel_Pacheco": [(250, 30, 240), (5, 5, 200)]}


@pytest.fixture(params=["lfw", "lfw-deepfunneled", "lfw_funneled"])
def folder(tmp_path: Path, save_photo: Callable[..., None], request: pytest.FixtureRequest) -> Path:
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
    folder: Path, split: str, people: dict[str, list[tuple[int, int, int]]], labels: list[int]
) -> None:
    found = load("lfw", split, folder, size=6)
    assert found.labels.tolist() == labels
    assert found.class_names == tuple(people)
    colours = [colour for photos in people.values() for colour in photos]
    np.testing.assert_allclose(found.images[:, :, 3, 3].numpy(), colours, atol=3)
    assert found.images.shape == (len(labels), 3, 6, 6)


def test_limit_and_default_size(folder: Path) -> None:
    next(folder.glob("*/Zico/Zico_0001.jpg")).write_bytes(b"not to be decoded")
    found = load("lfw", "train", folder, limit=2)
    assert found.images.shape == (2, 3, 224, 224)
    assert found.labels.tolist() == [0, 1]
    with pytest.raises(FileFormatError, match=r"Zico_0001\.jpg is not a whole image"):
        load("lfw", "train", folder)


def test_lists_inside_the_folder(folder: Path) -> None:
    inside = next(path for path in folder.iterdir() if path.is_dir())
    (folder / "peopleDevTest.txt").rename(inside / "peopleDevTest.txt")
    assert load("lfw", "test", folder, size=4).class_names == ("Abel_Pacheco",)


def test_missing_list_folder_and_image(folder: Path) -> None:
    next(folder.glob("*/Zico/Zico_0003.jpg")).unlink()
    with pytest.raises(InputError, match=r"Zico_0003\.jpg is listed but not there"):
        load("lfw", "train", folder)
    (folder / "peopleDevTest.txt").unlink()
    advice = r"peopleDevTest\.txt, which is not there.*lfw\.tgz.*peopleDevTest\.txt.*http"
    with pytest.raises(InputError, match=advice):
        load("lfw", "test", folder)
    next(path for path in folder.iterdir() if path.is_dir()).rename(folder / "faces")
    with pytest.raises(InputError, match="needs the folder .*lfw or .*lfw-deepfunneled.*by hand"):
        load("lfw", "train", folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a list of persons"),
        (b"\xff\xd8\xff\xe0", "is not a list of persons"),
        (b"2\nZico 3\nAaron_Guiel 1\n", "is not a list of persons"),
        (b"1\nZico\tmany\n", "is not a list of persons"),
        (b"Zico\t3\n", "is not a list of persons"),
        (b"2\nZico\t3\n", "announces 2 persons and lists 1"),
        (b"2\nZico\t3\nZico\t3\n", "announces 2 persons and lists 1"),
    ],
)
def test_damaged_list(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "peopleDevTrain.txt").write_bytes(content)
    with pytest.raises(FileFormatError, match=rf"peopleDevTrain\.txt {message}"):
        load("lfw", "train", tmp_path)
