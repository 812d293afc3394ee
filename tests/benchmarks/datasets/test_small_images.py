"""Sets of small images in the formats of their authors: idx, records, MATLAB, zips of drawings."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp
from PIL import Image
from scipy.io import savemat

from benchmarks.datasets import load
from benchmarks.datasets.idx import read_idx
from laplace_metric.errors import FileFormatError


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


RNG = np.random.default_rng(0)


LABELS = np.array([3, 8, 0, 6, 1, 9])


IMAGES = RNG.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)


COUNTS = RNG.integers(0, 50, (6, 10))


def place_archive(folder: Path, batches: dict[str, bytes]) -> None:
    (folder / "CIFAR10").mkdir(exist_ok=True)
    with tarfile.open(folder / "CIFAR10/cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, content in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def records(rows: slice) -> bytes:
    pairs = zip(LABELS[rows].tolist(), IMAGES[rows], strict=True)
    return b"".join(bytes([label]) + image.tobytes() for label, image in pairs)


def test_binary_archive(tmp_path: Path) -> None:
    parts = [slice(0, 1), slice(1, 2), slice(2, 4), slice(4, 5), slice(5, 6)]
    batches = {f"data_batch_{i}.bin": records(part) for i, part in enumerate(parts, 1)}
    place_archive(tmp_path, {"test_batch.bin": records(slice(1, 4)), **batches})
    train, test = load("cifar10", "train", tmp_path), load("cifar10", "test", tmp_path)
    assert train.images.numpy().tolist() == IMAGES.tolist()
    assert train.labels.tolist() == LABELS.tolist()
    assert test.images.numpy().tolist() == IMAGES[1:4].tolist()
    assert test.labels.tolist() == [8, 0, 6]
    assert [test.class_names[label] for label in test.labels] == ["ship", "airplane", "frog"]
    assert load("cifar10", "train", tmp_path, limit=2).labels.tolist() == [3, 6]
    assert not test.extras


def test_npz_of_the_test_split(tmp_path: Path) -> None:
    (tmp_path / "CIFAR10").mkdir()
    np.savez(
        tmp_path / "CIFAR10/cifar10_test.npz",
        images=IMAGES.transpose(0, 2, 3, 1),
        labels=LABELS,
        cifar10h_counts=COUNTS.astype(np.int16),
    )
    test = load("cifar10", "test", tmp_path)
    assert test.images.numpy().tolist() == IMAGES.tolist()
    assert test.labels.tolist() == LABELS.tolist()
    assert test.extras["cifar10h_counts"].tolist() == COUNTS.tolist()


def jpeg(level: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((32, 32, 3), level, np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


def place_jpeg(folder: Path, strings: list[bytes]) -> None:
    (folder / "CIFAR10").mkdir()
    np.savez(
        folder / "CIFAR10/cifar10_train_jpeg.npz",
        jpeg_bytes=np.frombuffer(b"".join(strings), np.uint8),
        offsets=np.cumsum([0, *map(len, strings)]),
        labels=np.arange(len(strings)),
    )


def test_npz_of_jpeg_strings(tmp_path: Path) -> None:
    levels = [0, 50, 200, 255]
    place_jpeg(tmp_path, [jpeg(level) for level in levels])
    train = load("cifar10", "train", tmp_path)
    assert train.images.shape == (4, 3, 32, 32)
    means = train.images.float().mean((1, 2, 3))
    torch.testing.assert_close(means, torch.tensor(levels).float(), atol=1.5, rtol=0)
    assert train.labels.tolist() == [0, 1, 2, 3]
    assert torch.equal(load("cifar10", "train", tmp_path, limit=2).images, train.images[::2])


@pytest.mark.parametrize(
    "batches", [{}, {"test_batch.bin": b"x" * 3072}, {"test_batch.bin": b"x" * 3074}]
)
def test_archive_with_other_content(tmp_path: Path, batches: dict[str, bytes]) -> None:
    place_archive(tmp_path, batches)
    with pytest.raises(FileFormatError, match="binary version.*CIFAR-10"):
        load("cifar10", "test", tmp_path)


def test_real_test_split(real_data: Path) -> None:
    test = load("cifar10", "test", real_data)
    assert test.images.shape == (10_000, 3, 32, 32)
    assert [test.class_names[label] for label in test.labels[:4]] == [
        "cat",
        "ship",
        "ship",
        "airplane",
    ]
    counts = test.extras["cifar10h_counts"]
    assert int(counts.sum()) == 511_000
    assert (int(counts.sum(1).min()), int(counts.sum(1).max())) == (47, 63)
    agreement = (counts.argmax(1) == test.labels).float().mean()
    assert float(agreement) == pytest.approx(0.9921, abs=5e-4)


SVHN_IMAGES = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)


SVHN_LABELS = np.array([1, 10, 9, 10, 2, 5], np.uint8)  # as published: 10 stands for 0


def svhn_place(folder: Path, split: str, **changed: np.ndarray) -> Path:
    path = folder / f"SVHN/{split}_32x32.mat"
    path.parent.mkdir(exist_ok=True)
    content = {"X": SVHN_IMAGES.transpose(2, 3, 1, 0), "y": SVHN_LABELS[:, None], **changed}
    savemat(path, content, do_compression=True)
    return path


@pytest.mark.parametrize("split", ["train", "test"])
def test_images_and_digits(tmp_path: Path, split: str) -> None:
    svhn_place(tmp_path, split)
    found = load("svhn", split, tmp_path)
    np.testing.assert_array_equal(found.images.numpy(), SVHN_IMAGES)
    assert [found.class_names[label] for label in found.labels] == list("109025")
    assert found.name == f"svhn/{split}"
    assert len(found.class_names) == 10


@pytest.mark.parametrize(
    "changed",
    [
        {"X": SVHN_IMAGES},
        {"X": SVHN_IMAGES.transpose(2, 3, 1, 0) / 255},
        {"y": SVHN_LABELS[:5]},
        {"y": SVHN_LABELS - 1},
        {"y": SVHN_LABELS + 1},
        {"y": SVHN_LABELS + 0.5},
    ],
)
def test_other_content(tmp_path: Path, changed: dict[str, np.ndarray]) -> None:
    svhn_place(tmp_path, "train", **changed)
    with pytest.raises(FileFormatError, match=r"train_32x32\.mat.*SVHN"):
        load("svhn", "train", tmp_path)


OMNIGLOT_RNG = np.random.default_rng(0)


INK = OMNIGLOT_RNG.random((8, 105, 105)) < 0.1  # 2 alphabets x 2 characters x 2 drawers


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


@pytest.mark.parametrize(
    ("split", "characters", "alphabets"), [("train", 964, 30), ("test", 659, 20)]
)
def test_omniglot_real_sets(real_data: Path, split: str, characters: int, alphabets: int) -> None:
    found = load("omniglot", split, real_data)
    assert found.images.shape == (20 * characters, 1, 28, 28)
    assert found.labels.bincount().tolist() == [20] * characters
    assert len(found.extras["alphabet"].unique()) == alphabets
    assert found.extras["drawer"].bincount().tolist() == [0] + [characters] * 20
    assert 0.02 < float(found.pixels().mean()) < 0.2  # ink is bright, and little of it
