from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

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


@pytest.mark.parametrize(("width", "height"), [(333, 500), (500, 333), (501, 500), (1, 9), (7, 7)])
@pytest.mark.parametrize("size", [1, 7, 224])
def test_every_side_fits(tmp_path: Path, width: int, height: int, size: int) -> None:
    path = save(tmp_path / "a.png", np.full((height, width), 90, np.uint8))
    assert torch.equal(read_square(path, size), torch.full((3, size, size), 90, dtype=torch.uint8))


def test_only_kept_rows_are_decoded(tmp_path: Path) -> None:
    whole = [save(tmp_path / f"{i}.jpg", np.full((9, 9, 3), 40 * i, np.uint8)) for i in range(3)]
    missing = (tmp_path / "missing.jpg", 1)
    listed = [pair for i, path in enumerate(whole) for pair in ((path, 2 * i), missing)]
    found = read_listed(Request("cub200", "train", limit=3, size=5), listed, "abcde")
    assert found.labels.tolist() == [0, 2, 4]
    assert found.images[:, :, 2, 2].tolist() == [[0] * 3, [40] * 3, [80] * 3]
    with pytest.raises(InputError, match=r"missing\.jpg is listed but not there"):
        read_listed(Request("cub200", "train"), [missing], "abcde")


@pytest.mark.parametrize("size", [0, -3])
def test_bad_size(size: int) -> None:
    with pytest.raises(InputError, match=f"size={size} must be at least 1"):
        read_listed(Request("cub200", "train", size=size), [], "abc")


def test_damaged_files(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path = save(tmp_path / "a.jpg", noise)
    whole = path.read_bytes()
    for content in (b"", b"no image", whole[:20], whole[:400], whole[:-300]):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"a\.jpg is not a whole image"):
            read_square(path, 8)
