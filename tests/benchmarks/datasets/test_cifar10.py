from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.datasets import load
from laplace_metric.errors import FileFormatError

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


def test_human_counts_beside_the_archive(tmp_path: Path) -> None:
    place_archive(tmp_path, {"test_batch.bin": records(slice(0, 6))})
    np.save(tmp_path / "CIFAR10/cifar10h-counts.npy", COUNTS)
    test = load("cifar10", "test", tmp_path, limit=3)
    assert test.extras["cifar10h_counts"].tolist() == COUNTS[::2].tolist()


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


def test_damaged_jpeg(tmp_path: Path) -> None:
    place_jpeg(tmp_path, [b"no image"])
    with pytest.raises(FileFormatError, match="damaged JPEG"):
        load("cifar10", "train", tmp_path)


@pytest.mark.parametrize(
    "batches", [{}, {"test_batch.bin": b"x" * 3072}, {"test_batch.bin": b"x" * 3074}]
)
def test_archive_with_other_content(tmp_path: Path, batches: dict[str, bytes]) -> None:
    place_archive(tmp_path, batches)
    with pytest.raises(FileFormatError, match="not the binary version of CIFAR-10"):
        load("cifar10", "test", tmp_path)


def test_truncated_archive(tmp_path: Path) -> None:
    place_archive(tmp_path, {"test_batch.bin": records(slice(0, 6))})
    path = tmp_path / "CIFAR10/cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(FileFormatError, match="not the binary version"):
        load("cifar10", "test", tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK nothing", b"\x93NUMPY"])
def test_damaged_npz(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "CIFAR10").mkdir()
    (tmp_path / "CIFAR10/cifar10_test.npz").write_bytes(content)
    with pytest.raises(FileFormatError, match="not an npz file of arrays"):
        load("cifar10", "test", tmp_path)


def test_npz_without_a_field_and_with_objects(tmp_path: Path) -> None:
    (tmp_path / "CIFAR10").mkdir()
    path = tmp_path / "CIFAR10/cifar10_test.npz"
    np.savez(path, images=IMAGES)
    with pytest.raises(FileFormatError, match=r"lacks a field: .*labels"):
        load("cifar10", "test", tmp_path)
    np.savez(path, images=IMAGES, labels=np.array([{}], dtype=object))
    with pytest.raises(FileFormatError, match="not an npz file of arrays"):
        load("cifar10", "test", tmp_path)


def test_damaged_counts(tmp_path: Path) -> None:
    place_archive(tmp_path, {"test_batch.bin": records(slice(0, 6))})
    (tmp_path / "CIFAR10/cifar10h-counts.npy").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match=r"counts\.npy is not an npy file"):
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


def test_real_train_split(real_data: Path) -> None:
    train = load("cifar10", "train", real_data, limit=500)
    assert train.images.shape == (500, 3, 32, 32)
    assert train.labels.bincount().tolist() == [50] * 10
