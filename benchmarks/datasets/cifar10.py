"""CIFAR-10, from the authors' binary archive or from npz, with the label counts of CIFAR-10H."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.datasets.formats import read_npy, read_npz
from benchmarks.datasets.remotes import Request
from laplace_metric._utils.archives import DAMAGE, check_size
from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.errors import FileFormatError

ARCHIVE = "CIFAR10/cifar-10-binary.tar.gz"
PACKED = {"train": "CIFAR10/cifar10_train_jpeg.npz", "test": "CIFAR10/cifar10_test.npz"}
COUNTS = "CIFAR10/cifar10h-counts.npy"
BATCHES = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}
RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue plane
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

Bytes = npt.NDArray[np.uint8]
Content = tuple[Bytes, npt.NDArray[np.int64]]  # images [n, 3, 32, 32], labels [n]


def read_cifar10(request: Request) -> ImageSet:
    """One split, uint8 [N, 3, 32, 32].

    The test split carries ``extras["cifar10h_counts"]`` [N, 10] int64 where they are known: how
    many people named each class (Peterson et al. 2019). Divided by its row sums it is a label
    distribution. Read from ``cifar-10-binary.tar.gz`` (lossless) if present, else from npz files.
    """
    path = request.file(ARCHIVE, PACKED[request.split])
    if path.suffix == ".gz":
        images, labels = _read_archive(path, request)
    elif request.split == "train":
        images, labels = _read_jpeg(path, request)
    else:
        images, labels = _read_plain(path, request)
    counts = _counts(path, request)
    extras = {} if counts is None else {"cifar10h_counts": torch.from_numpy(counts)}
    return ImageSet(
        torch.from_numpy(images), torch.from_numpy(labels), request.title, CLASSES, extras
    )


def _read_archive(path: Path, request: Request) -> Content:
    try:
        with tarfile.open(path, "r:gz") as archive:
            content = b"".join(_members(archive, BATCHES[request.split]))
        records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    except (*DAMAGE, tarfile.TarError, KeyError) as error:
        raise FileFormatError(
            f"{path} is not the binary version of CIFAR-10 ({error}). Remove it and fetch it again."
        ) from error
    records = records[request.rows(len(records)).numpy()]
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _members(archive: tarfile.TarFile, names: Iterable[str]) -> Iterable[bytes]:
    for name in names:
        member = archive.getmember(f"cifar-10-batches-bin/{name}")
        check_size(member.size, 0)
        stream = archive.extractfile(member)
        if stream is None:
            raise KeyError(f"{name} is no file")
        yield stream.read()


def _read_plain(path: Path, request: Request) -> Content:
    table = read_npz(path, "images", "labels")
    rows = request.rows(len(table["labels"])).numpy()
    return _planes(table["images"][rows]), table["labels"][rows].astype(np.int64)


def _read_jpeg(path: Path, request: Request) -> Content:
    table = read_npz(path, "jpeg_bytes", "offsets", "labels")
    rows = request.rows(len(table["labels"])).numpy()
    content, offsets = table["jpeg_bytes"].tobytes(), table["offsets"].tolist()
    try:
        images = np.stack([_decoded(content[offsets[r] : offsets[r + 1]]) for r in rows])
    except (*DAMAGE, IndexError, Image.DecompressionBombError) as error:
        raise FileFormatError(f"{path} holds a damaged JPEG image ({error}).") from error
    return _planes(images), table["labels"][rows].astype(np.int64)


def _decoded(jpeg: bytes) -> Bytes:
    image = Image.open(io.BytesIO(jpeg))
    if image.size != (32, 32):
        raise ValueError(f"{image.size[0]} x {image.size[1]} pixels, not 32 x 32")
    return np.asarray(image.convert("RGB"))


def _planes(images: Bytes) -> Bytes:
    """[n, H, W, 3] to [n, 3, H, W]."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _counts(path: Path, request: Request) -> npt.NDArray[np.int64] | None:
    """Human label counts [n, 10] of the test images: in the npz, or a file beside the archive."""
    beside = request.folder() / COUNTS
    if request.split == "train" or (path.suffix == ".gz" and not beside.is_file()):
        return None
    if path.suffix == ".gz":
        counts = read_npy(beside)
    else:
        counts = read_npz(path, "cifar10h_counts")["cifar10h_counts"]
    rows = request.rows(len(counts)).numpy()
    return counts[rows].astype(np.int64)
