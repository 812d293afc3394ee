"""Files as tensors: upright, on white, of one size; what cannot be read is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmarks.datasets.formats import read_square
from laplace_metric.cli._open_source import open_source
from laplace_metric.cli._options import in_options
from laplace_metric.cli._source import ReadOptions
from laplace_metric.datasets import CentreCrop, load_folder
from laplace_metric.datasets._grey_or_rgb import as_grey_or_rgb
from laplace_metric.errors import InputError


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize(
    ("orientation", "turns"), [(0, 0), (1, 0), (3, 2), (6, -1), (8, 1), (9, 0)]
)
def test_cameras_say_which_side_is_up(tmp_path, orientation, turns, ending):
    """6: the first row of the file is the right side; 8: the left one (Exif 2.32, 4.6.4)."""
    array = np.arange(48, dtype=np.uint8).reshape(6, 8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(array).save(tmp_path / f"1.{ending}", exif=exif)
    found = (load_folder(tmp_path, channels=1).pixels()[0, 0] * 255).round().numpy()
    assert found.shape == np.rot90(array, turns).shape
    assert ending in ("jpg", "webp") or np.array_equal(found, np.rot90(array, turns))


@pytest.mark.parametrize("note", [b"Exif\0\0no note at all", b"Exif\0\0II*\0\xf2"])
@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
def test_a_damaged_note_of_the_camera_spoils_no_picture(write, note, ending):
    path = write(f"photos/1.{ending}", (8, 6), exif=note)
    assert load_folder(path.parent).pixels().shape == (1, 3, 6, 8)


@given(alpha=st.integers(0, 255), colour=st.tuples(*[st.integers(0, 255)] * 3))
@settings(max_examples=30)
def test_transparent_images_are_on_white(alpha, colour):
    """255 + alpha (colour - 255), rounded: the definition of "over"."""
    rgba = Image.new("RGBA", (1, 1), (*colour, alpha))
    expected = 255 + alpha / 255 * (np.array(colour) - 255)
    found = as_grey_or_rgb(rgba, 3)
    assert found.mode == "RGB"
    assert np.abs(np.array(found.getpixel((0, 0))) - expected).max() <= 1
    luma = found.convert("L").getpixel((0, 0))
    assert as_grey_or_rgb(rgba, 1).getpixel((0, 0)) == luma


def test_transparent_colours_of_a_palette_and_of_grey(tmp_path):
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 0, 128, 0])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "1.png", transparency=0)
    Image.new("LA", (2, 1), (0, 0)).save(tmp_path / "2.png")
    palette.save(tmp_path / "3.gif", transparency=0)
    found = load_folder(tmp_path).pixels()
    assert (found[:, :, 0, 0] == 1).all()
    assert found[[0, 2], :, 0, 1].tolist() == [[0, pytest.approx(128 / 255), 0]] * 2


@pytest.mark.parametrize("mode", ["1", "P", "CMYK", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_grey_or_rgb(mode, channels):
    picture = as_grey_or_rgb(Image.new("RGB", (2, 2), "white").convert(mode), channels)
    assert picture.mode == ("L" if channels == 1 else "RGB")
    assert np.asarray(picture).min() == 255


@pytest.mark.parametrize("mode", ["I", "F", "I;16"])
def test_more_than_8_bits_are_refused(mode, tmp_path):
    with pytest.raises(ValueError, match="more than 8.*bits"):
        as_grey_or_rgb(Image.new(mode, (2, 2)), 1)
    Image.new("I;16", (2, 2)).save(tmp_path / "1.png")
    with pytest.raises(InputError, match=r"1.png cannot.*I;16.*more than 8"):
        load_folder(tmp_path).pixels()


def test_size_is_that_of_published_sets_or_of_the_command_line(write, tmp_path):
    write("photos/1.png", (40, 30))
    write("photos/2.png", (30, 50))
    cropped = load_folder(tmp_path / "photos", size=16).pixels()
    for image, name in zip(cropped, ("1.png", "2.png"), strict=True):
        assert torch.equal(image, read_square(tmp_path / "photos" / name, 16).float() / 255)
    squeezed = load_folder(tmp_path / "photos", size=16, crop=False).pixels()
    source = open_source(tmp_path / "photos", ReadOptions(size=16, channels=3))
    assert torch.equal(squeezed, source.read([0, 1]))
    assert not torch.equal(squeezed, cropped)


def test_a_centre_crop_is_the_transform_of_a_size(write, tmp_path):
    write("photos/1.png", (40, 30))
    by_size = load_folder(tmp_path / "photos", size=16).pixels()
    crop = load_folder(tmp_path / "photos", transform=CentreCrop(16)).pixels()
    torch.testing.assert_close(crop, by_size)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    scaled = load_folder(tmp_path / "photos", transform=CentreCrop(16, mean, std)).pixels()
    planes = torch.tensor([mean, std])[:, None, :, None, None]
    torch.testing.assert_close(scaled, (by_size - planes[0]) / planes[1])
    grey = load_folder(tmp_path / "photos", channels=1, transform=CentreCrop(16, 0.5, 0.5))
    expected = load_folder(tmp_path / "photos", channels=1, size=16).pixels() * 2 - 1
    torch.testing.assert_close(grey.pixels(), expected)


def test_a_crop_that_cannot_be(write, tmp_path):
    for how, says in (((0,), "size"), ((4, 0.5, 0), "std=0: pass numbers above 0")):
        with pytest.raises(InputError, match=says):
            CentreCrop(*how)
    write("photos/1.png", (40, 30))
    grey = load_folder(tmp_path / "photos", channels=1, transform=CentreCrop(4, (0.1, 0.2, 0.3)))
    with pytest.raises(InputError, match="mean has 3.*image 1"):
        grey.pixels()


def damage(photos, names):
    for name in names:
        path = photos / name
        path.write_bytes(path.read_bytes()[:60])


def test_damaged_files_are_named_up_to_five(write, tmp_path):
    names = [f"{number}.png" for number in range(9)]
    for name in names:
        write(f"photos/{name}", (20, 20))
    photos = tmp_path / "photos"
    damage(photos, names[3:7])
    found = load_folder(photos)
    with pytest.raises(InputError) as caught:
        found.pixels()
    assert str(caught.value).startswith(f"4 files cannot be read as images, {photos / '3.png'} (")
    assert "skip_unreadable=True" in str(caught.value)
    assert found.pixels([0, 1, 8]).shape == (3, 3, 20, 20)
    assert found.unreadable() == ("3.png", "4.png", "5.png", "6.png")


def test_damaged_files_are_left_out_where_that_is_asked(write, tmp_path, caplog):
    for name in ("cat/1.png", "cat/2.png", "dog/3.png"):
        write(f"photos/{name}", (20, 20))
    photos = tmp_path / "photos"
    damage(photos, ["cat/1.png"])
    found = load_folder(photos, skip_unreadable=True)
    assert found.ids.tolist() == ["cat/2.png", "dog/3.png"]
    assert found.labels.tolist() == ["cat", "dog"]
    assert "left out of 'photos': cat/1.png" in caplog.text
    damage(photos, ["cat/2.png", "dog/3.png"])
    with pytest.raises(InputError, match="cannot.*an image"):
        load_folder(photos, skip_unreadable=True)


def test_the_advice_is_that_of_the_command_line_there(write, tmp_path):
    write("photos/1.png", (20, 20))
    write("photos/2.png", (20, 10))
    with pytest.raises(InputError, match="20 x 10") as sizes:
        open_source(tmp_path / "photos").read([0, 1])
    assert "give --size 224, or a transform" in in_options(str(sizes.value))
    damage(tmp_path / "photos", ["1.png", "2.png"])
    with pytest.raises(InputError, match=r"^2 files ") as unreadable:
        open_source(tmp_path / "photos").read([0, 1])
    assert "leave such files out with --skip-unreadable." in in_options(str(unreadable.value))


def test_a_bomb_is_named_and_not_unpacked(tmp_path, monkeypatch):
    Image.new("1", (300, 300)).save(tmp_path / "1.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(InputError, match=r"1.png cannot.*decompression bomb"):
        load_folder(tmp_path).pixels()
