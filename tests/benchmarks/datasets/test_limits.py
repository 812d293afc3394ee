"""Files that claim to hold more than they do: a named error, before memory is taken."""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.datasets import load
from benchmarks.datasets.formats import read_npy, read_npz
from benchmarks.datasets.idx import read_idx
from laplace_metric._utils import archives
from laplace_metric.cli._open_source import open_source
from laplace_metric.errors import FileFormatError

MUCH = 20_480_000


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch):
    """Bombs small enough for a test, and a limit to match; no reader may take 10 MB."""
    monkeypatch.setattr(archives, "FREE", 2**16)
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zeros(n: int) -> bytes:
    """n zeros, packed, without n bytes of memory."""
    packer = zlib.compressobj(wbits=31)
    return b"".join(packer.compress(bytes(n // 20)) for _ in range(20)) + packer.flush()


def packed(path: Path, content: dict[str, bytes], **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def npz_bomb(path: Path) -> Path:
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("embeddings.npy", "w") as file:
        file.write(header("(5000000, 1)"))
        for _ in range(20):
            file.write(bytes(10**6))
    return path


def png_bomb(side: int = 30_000) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(bytes(99))), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def flagged(path: Path, *, encrypted: bool = False, method: int = 8) -> Path:
    """The zip file with the flag of encryption, or another method, in both of its headers."""
    data = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(signature) + place
        data[at] |= encrypted
        data[at + 2 : at + 4] = struct.pack("<H", method)
    path.write_bytes(data)
    return path


def test_idx(tmp_path):
    shape = struct.pack(">I", MUCH)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + shape) + zeros(MUCH))
    with pytest.raises(FileFormatError, match="unpack to 20,480,000"):
        read_idx(path)
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x02") + zeros(MUCH))
    with pytest.raises(FileFormatError, match="announces 2 values .* but 3 follow"):
        read_idx(path)
    for name, pack in (("b", bytes), ("b.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(b"\0\0\x08\xff" + bytes(4 * 255)))
        with pytest.raises(FileFormatError, match="255 dimensions"):
            read_idx(tmp_path / name)


ARRAYS = {
    "claims": (header("(200000, 16000)") + bytes(99), "12,800,000,000 bytes"),
    "negative": (header("(-1, 4)") + bytes(99), r"shape \(-1, 4\)"),
    "huge": (header(f"({10**30}, 4)") + bytes(99), "bytes, the file"),
    "short": (header("(9, 4)") + bytes(99), "144 bytes"),
    "deep": (header("(" * 300 + ")" * 300), "array"),
    "cut": (header("(9, 4)")[:30], "array"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name, tmp_path):
    content, says = ARRAYS[name]
    (tmp_path / "x.npy").write_bytes(content)
    packed(tmp_path / "x.npz", {"embeddings.npy": content})
    readers = (lambda: read_npy(tmp_path / "x.npy"), lambda: open_source(tmp_path / "x.npy"))
    readers += (lambda: read_npz(tmp_path / "x.npz", "embeddings"),)
    readers += (lambda: open_source(tmp_path / "x.npz"),)
    for read in readers:
        with pytest.raises(FileFormatError, match=says):
            read()


def test_archives_of_arrays(tmp_path):
    array = {"embeddings.npy": header("(2, 2)") + bytes(16)}
    bad = [
        (npz_bomb(tmp_path / "bomb.npz"), "would unpack to"),
        (flagged(packed(tmp_path / "e.npz", array), encrypted=True), "is encrypted"),
        (flagged(packed(tmp_path / "m.npz", array), method=99), "compression method|not supported"),
    ]
    for path, says in bad:
        for read in (lambda p: read_npz(p, "embeddings"), open_source):
            with pytest.raises(FileFormatError, match=says):
                read(path)


def test_what_is_compressed_well_is_still_read(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", embeddings=np.zeros((500, 8)))
    assert len(open_source(tmp_path / "x.npz")) == 500


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("0001_01.png", png_bomb(), "30000 x 30000|decompression bomb"),
        ("0001_01.png", png_bomb(9_000), "9000 x 9000"),
        ("0001_01.png", b"no image", "cannot identify"),
        (f"0001_{10**20}.png", png_bomb(105), "holds no Alphabet"),
    ],
)
def test_drawings(name, content, says, tmp_path):
    path = tmp_path / "Omniglot" / "images_background.zip"
    packed(path, {f"images_background/Greek/character01/{name}": content})
    with pytest.raises(FileFormatError, match=says):
        load("omniglot", "train", tmp_path)


@pytest.mark.parametrize("classes", ["[", '["a"]', "3", "[" * 9000, "null"])
def test_headers_of_safetensors(classes, tmp_path):
    tensors = {"embeddings": torch.ones(2, 3), "labels": torch.tensor([0, 5])}
    save_file(tensors, tmp_path / "x.safetensors", {"classes": classes})
    with pytest.raises(FileFormatError, match="header.*damaged"):
        open_source(tmp_path / "x.safetensors")
    tensors["labels"] = torch.tensor([-1, 0])
    save_file(tensors, tmp_path / "x.safetensors", {"classes": json.dumps(["a", "b"])})
    with pytest.raises(FileFormatError, match="header.*damaged"):
        open_source(tmp_path / "x.safetensors")
