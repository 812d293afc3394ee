from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from benchmarks.datasets import load
from benchmarks.datasets.idx import read_idx
from laplace_metric.errors import FileFormatError, InputError


def encode(array: np.ndarray) -> bytes:
    """The idx format, written a second time, straight from its description."""
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return header + array.astype(np.uint8).tobytes()


def place(folder: Path, name: str, array: np.ndarray, zipped: bool = True) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = encode(array)
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)))
def test_reads_what_was_written(
    array: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("idx")
    for zipped, name in ((True, "a.gz"), (False, "a")):
        np.testing.assert_array_equal(read_idx(place(folder, name, array, zipped)), array)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST"), ("kmnist", "KMNIST")],
)
@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("test", "t10k")])
def test_split_of_each_family(
    tmp_path: Path, name: str, folder: str, split: str, prefix: str, zipped: bool
) -> None:
    images = np.arange(3 * 4 * 5).reshape(3, 4, 5)
    labels = np.array([2, 0, 9])
    end = ".gz" if zipped else ""
    place(tmp_path, f"{folder}/raw/{prefix}-images-idx3-ubyte{end}", images, zipped)
    place(tmp_path, f"{folder}/raw/{prefix}-labels-idx1-ubyte{end}", labels, zipped)
    found = load(name, split, tmp_path)
    assert found.images.shape == (3, 1, 4, 5)
    assert found.images[:, 0].tolist() == images.tolist()
    assert found.labels.tolist() == [2, 0, 9]
    assert found.name == f"{name}/{split}"
    assert load(name, split, tmp_path, limit=2).labels.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "nothing"),
        (b"\x00\x00", "00 00"),
        (b"\x00\x00\x0d\x01" + struct.pack(">I", 1) + b"\x00" * 4, "starts with 00 00 0d"),
        (b"\x89PNG....", "89 50 4e"),
        (encode(np.zeros((2, 3)))[:-1], "announces 6 values .* but 5 follow"),
        (encode(np.zeros((2, 3))) + b"x", "announces 6 values .* but 7 follow"),
        (encode(np.zeros((2, 3)))[:9], "announces"),
    ],
)
def test_damaged_content(tmp_path: Path, content: bytes, message: str) -> None:
    for name, written in (("a", content), ("a.gz", gzip.compress(content))):
        path = tmp_path / name
        path.write_bytes(written)
        with pytest.raises(FileFormatError, match=message):
            read_idx(path)


@pytest.mark.parametrize("cut", [3, 15, -9, -3])
def test_truncated_gzip(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(encode(np.arange(200)))[:cut])
    with pytest.raises(FileFormatError, match=r"a\.gz is not a whole gzip file"):
        read_idx(path)


def test_gzip_with_other_bytes_inside(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    whole = gzip.compress(encode(np.arange(200)))
    for start, junk in ((10, b"\xff" * 20), (60, b"\x00")):  # no deflate stream, wrong checksum
        path.write_bytes(whole[:start] + junk + whole[start + len(junk) :])
        with pytest.raises(FileFormatError, match="not a whole gzip file"):
            read_idx(path)


def test_uncompressed_file_named_gz(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(encode(np.arange(3)))
    with pytest.raises(FileFormatError, match=r"remove \.gz"):
        read_idx(path)


def test_images_and_labels_that_do_not_fit(tmp_path: Path) -> None:
    place(tmp_path, "MNIST/raw/t10k-images-idx3-ubyte.gz", np.zeros((3, 2, 2)))
    place(tmp_path, "MNIST/raw/t10k-labels-idx1-ubyte.gz", np.zeros(4))
    with pytest.raises(FileFormatError, match="do not fit"):
        load("mnist", "test", tmp_path)


def test_missing_file_names_it_and_its_source(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load("kmnist", "train", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "KMNIST/raw/train-images-idx3-ubyte.gz") in message
    assert "download=True" in message
    assert "http://codh.rois.ac.jp/kmnist/dataset/kmnist/train-images-idx3-ubyte.gz" in message
    assert "labels" not in message


@pytest.mark.parametrize(
    ("name", "split", "n", "first"),
    [
        ("mnist", "train", 60_000, [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
        ("mnist", "test", 10_000, [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]),
        ("fashion-mnist", "train", 60_000, [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]),
        ("fashion-mnist", "test", 10_000, [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]),
        ("kmnist", "test", 10_000, None),
    ],
)
def test_real_sets(real_data: Path, name: str, split: str, n: int, first: list[int] | None) -> None:
    found = load(name, split, real_data)
    assert found.images.shape == (n, 1, 28, 28)
    assert found.labels.unique().tolist() == list(range(10))
    assert first is None or found.labels[:10].tolist() == first
    if name != "mnist":
        assert found.labels.bincount().tolist() == [n // 10] * 10


def test_mean_of_the_mnist_training_pixels(real_data: Path) -> None:
    images = load("mnist", "train", real_data).images
    assert float(images.float().mean()) / 255 == pytest.approx(0.1307, abs=5e-5)
