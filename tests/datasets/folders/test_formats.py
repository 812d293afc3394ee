"""Images are told by their first bytes, whatever they are called."""

from __future__ import annotations

import io
import shutil
import warnings

import pytest
from PIL import Image

from laplace_metric.cli._open_source import open_source
from laplace_metric.datasets import load_folder
from laplace_metric.datasets._image_files import FORMATS, images_below, is_image
from laplace_metric.errors import InputError, LaplaceMetricWarning

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def encoded(format):
    file = io.BytesIO()
    Image.new("RGB", (9, 7), "red").save(file, format)
    return file.getvalue()


WRITTEN = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF")


@pytest.mark.parametrize("format", WRITTEN)
@pytest.mark.parametrize("name", ["1.jfif", "1.avif", "1", "1.txt", "1.JPG", "1.tmp.gz"])
def test_content_says_that_it_is_an_image(format, name, tmp_path):
    Image.init()
    if format not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {format}")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / name).write_bytes(encoded(format))
    found = load_folder(tmp_path)
    assert found.ids.tolist() == [f"cat/{name}"]
    assert found.pixels().shape == (1, 3, 7, 9)
    assert [name for name, fits in FORMATS.items() if fits(encoded(format))] == [format]


def test_other_files_are_no_images_and_counted(tmp_path, caplog):
    others = {
        "notes.txt": b"BM is how a bitmap begins, and so does this text",
        "labels.json": b"{}",
        "Thumbs.db": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "empty": b"",
        "song.wav": b"RIFF\0\0\0\0WAVEfmt ",
        "film.mp4": b"\0\0\0\x18ftypisom\0\0\0\0",
        "GIF": b"GIF is a format",
    }
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (tmp_path / ".hidden").write_bytes(encoded("PNG"))
    with pytest.raises(InputError, match="no image.*files: "):
        load_folder(tmp_path)
    (tmp_path / "1").write_bytes(encoded("PNG"))
    images, rest = images_below(tmp_path)
    assert (images, rest) == (["1"], sorted(others))
    with caplog.at_level("INFO", "laplace_metric"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load_folder(tmp_path)) == 1
    assert f"{len(others)} files that are no images" in caplog.text


def test_a_damaged_image_is_told_when_it_is_read(tmp_path):
    for name in ("1.jpg", "2.JFIF", "3.avif"):
        (tmp_path / name).write_bytes(b"no image")
    found = load_folder(tmp_path)
    assert len(found) == 3
    with pytest.raises(InputError, match=r"3 files.*as images"):
        found.pixels()


def test_images_that_pillow_cannot_open_are_told_with_their_number(tmp_path, monkeypatch):
    Image.init()
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    for name in ("1.heic", "2.jpg"):
        (tmp_path / name).write_bytes(HEIC)
    with pytest.raises(InputError, match=r"no image.*Pillow.*2 HEIF"):
        load_folder(tmp_path)
    (tmp_path / "3.png").write_bytes(encoded("PNG"))
    with pytest.warns(LaplaceMetricWarning, match=r"2 images.* \(2 HEIF\).*pillow-heif"):
        assert load_folder(tmp_path).ids.tolist() == ["3.png"]
    monkeypatch.setitem(Image.OPEN, "HEIF", (None, None))  # as a plugin does
    assert images_below(tmp_path)[0] == ["1.heic", "2.jpg", "3.png"]


def test_commands_take_images_by_their_content(tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1").write_bytes(encoded("PNG"))
    shutil.copy(tmp_path / "photos" / "cat" / "1", tmp_path / "query")
    assert open_source(tmp_path / "photos").ids == ("cat/1",)
    assert open_source(tmp_path / "query").ids == ("query",)
    (tmp_path / "text").write_text("no image")
    with pytest.raises(InputError, match="text.*no kind.*read"):
        open_source(tmp_path / "text")
    assert is_image(tmp_path / "query")
    assert not is_image(tmp_path / "text")
