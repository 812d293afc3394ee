from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.datasets import captions, load
from laplace_metric.errors import FileFormatError, InputError, UnknownNameError

COLOURS = [(200, 100, 20), (20, 100, 200), (10, 250, 40)]
LEVELS = [[f"thing {i}", f"b {i}", f"c {i}", f"d {i}"] for i in range(3)]


@pytest.fixture
def folder(tmp_path: Path, save_packed: Callable[..., None]) -> Path:
    save_packed(tmp_path / "HierarCaps/images_jpeg.npz", COLOURS)
    write(tmp_path, [{"levels": levels, "image": "../../secret.jpg"} for levels in LEVELS])
    return tmp_path


def write(folder: Path, rows: object) -> None:
    (folder / "HierarCaps/captions.json").write_text(json.dumps(rows))


def test_every_image_has_its_own_label_and_four_texts(folder: Path) -> None:
    images = load("hierarcaps", "test", folder, size=4)
    assert images.labels.tolist() == [0, 1, 2]
    assert images.images[:, :, 2, 2].tolist() == [list(colour) for colour in COLOURS]
    texts = captions("hierarcaps", "test", folder)
    assert texts == [tuple(levels) for levels in LEVELS]
    assert load("hierarcaps", "test", folder, 2).labels.tolist() == [0, 1]
    assert captions("hierarcaps", "test", folder, 2) == texts[:2]
    assert load("hierarcaps", "test", folder, 1).images.shape == (1, 3, 224, 224)


def test_nobody_trains_on_it(folder: Path) -> None:
    for read in (load, captions):
        with pytest.raises(InputError, match=r"split='train': HierarCaps is a test set"):
            read("hierarcaps", data=folder)


def test_images_without_texts(folder: Path) -> None:
    (folder / "HierarCaps/captions.json").unlink()
    assert len(load("hierarcaps", "test", folder, size=4)) == 3
    with pytest.raises(InputError, match=r"needs the file .*captions\.json, which is not there"):
        captions("hierarcaps", "test", folder)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"levels": levels} for levels in LEVELS[:2]], "describes 2 where there are 3 images"),
        ([{"levels": levels[:-1]} for levels in LEVELS], "has 3 levels in row 0, not 4"),
        ([{"levels": [1, 2, 3, 4]}] * 3, "no 'levels' in row 0"),
    ],
)
def test_damaged_texts(folder: Path, rows: object, message: str) -> None:
    write(folder, rows)
    with pytest.raises(FileFormatError, match=message):
        captions("hierarcaps", "test", folder)


def test_captions_of_what_has_none(folder: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"name='cub'.*'emoji', 'hierarcaps'"):
        captions("cub", "test", folder)
    with pytest.raises(UnknownNameError, match=r"split='valid'"):
        captions("emoji", "valid", folder)
    with pytest.raises(InputError, match="limit=0"):
        captions("hierarcaps", "test", folder, 0)


def test_real_captions(real_data: Path) -> None:
    texts = captions("hierarcaps", "test", real_data)
    assert len(texts) == len(load("hierarcaps", "test", real_data, size=4)) == 1_000
    assert texts[1][:2] == ("bird", "blue bird")
    longer = [len(four[0]) < len(four[3]) for four in texts]
    assert sum(longer) > 990
