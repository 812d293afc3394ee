from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.datasets import load
from laplace_metric.errors import FileFormatError, InputError

RNG = np.random.default_rng(0)
INK = RNG.random((8, 105, 105)) < 0.1  # 2 alphabets x 2 characters x 2 drawers
PATHS = [
    f"images_background/{alphabet}/character{character:02d}/{number}_{drawer:02d}.png"
    for alphabet, character, number in (
        ("Greek", 1, "0394"),
        ("Greek", 2, "0395"),
        ("Korean", 1, "0560"),
        ("Korean", 2, "0561"),
    )
    for drawer in (1, 2)
]
NAMES = ("Greek/character01", "Greek/character02", "Korean/character01", "Korean/character02")


def place_zip(folder: Path, order: list[int]) -> Path:
    path = folder / "Omniglot/images_background.zip"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images_background/Greek/", b"")
        archive.writestr("__MACOSX/images_background/Greek/character01/._0394_01.png", b"no")
        for i in order:
            stream = io.BytesIO()
            Image.fromarray(~INK[i]).save(stream, "PNG")
            archive.writestr(PATHS[i], stream.getvalue())
    return path


def place_npz(folder: Path) -> None:
    (folder / "Omniglot").mkdir(exist_ok=True)
    np.savez(
        folder / "Omniglot/omniglot_background.npz",
        images_packed=np.packbits(INK.reshape(8, -1), axis=1),
        labels=np.arange(8) // 2,
        alphabet=np.arange(8) // 4,
        drawer=np.arange(8) % 2 + 1,
        class_names=np.array(NAMES),
    )


@pytest.mark.parametrize("form", ["zip", "npz"])
def test_original_size(tmp_path: Path, form: str) -> None:
    place_npz(tmp_path) if form == "npz" else place_zip(tmp_path, [5, 2, 0, 1, 7, 3, 6, 4])
    found = load("omniglot", "train", tmp_path, size=105)
    assert torch.equal(found.images[:, 0] == 255, torch.tensor(INK))
    assert found.images.unique().tolist() == [0, 255]
    assert found.class_names == NAMES
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.extras["alphabet"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found.extras["drawer"].tolist() == [1, 2] * 4


@pytest.mark.parametrize("form", ["zip", "npz"])
def test_resizing_averages_and_limit_picks_rows(tmp_path: Path, form: str) -> None:
    place_npz(tmp_path) if form == "npz" else place_zip(tmp_path, list(range(8)))
    found = load("omniglot", "train", tmp_path, size=35, limit=4)  # 35 = 105 / 3
    expected = INK[::2].reshape(4, 35, 3, 35, 3).mean((2, 4)) * 255
    np.testing.assert_allclose(found.images[:, 0].numpy(), expected, atol=0.51)
    assert found.labels.tolist() == [0, 1, 2, 3]
    assert found.extras["drawer"].tolist() == [1, 1, 1, 1]
    assert load("omniglot", "train", tmp_path).images.shape == (8, 1, 28, 28)


@pytest.mark.parametrize("size", [0, -2, 106])
def test_bad_size(tmp_path: Path, size: int) -> None:
    with pytest.raises(InputError, match=rf"size={size} must lie in 1\.\.105"):
        load("omniglot", "train", tmp_path, size=size)


def test_damaged_zip(tmp_path: Path) -> None:
    path = place_zip(tmp_path, list(range(8)))
    whole = path.read_bytes()
    for content, message in (
        (whole[:-30], "not a whole zip file"),
        (b"", "not a whole zip file"),
        (whole.replace(b"\x89PNG", b"\x89PNX"), "not a whole zip file"),
    ):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            load("omniglot", "train", tmp_path)


def test_zip_without_drawings(tmp_path: Path) -> None:
    place_zip(tmp_path, [])
    with pytest.raises(FileFormatError, match="holds no Alphabet/character"):
        load("omniglot", "train", tmp_path)


@pytest.mark.parametrize(
    ("split", "characters", "alphabets"), [("train", 964, 30), ("test", 659, 20)]
)
def test_real_sets(real_data: Path, split: str, characters: int, alphabets: int) -> None:
    found = load("omniglot", split, real_data)
    assert found.images.shape == (20 * characters, 1, 28, 28)
    assert found.labels.bincount().tolist() == [20] * characters
    assert len(found.extras["alphabet"].unique()) == alphabets
    assert found.extras["drawer"].bincount().tolist() == [0] + [characters] * 20
    assert 0.02 < float(found.pixels().mean()) < 0.2  # ink is bright, and little of it
