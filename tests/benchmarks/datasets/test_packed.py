"""Image files one behind the other in an npz: the birds, and what such a file is checked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.datasets import load
from benchmarks.datasets.packed import count_packed, read_packed, read_rows
from laplace_metric.errors import FileFormatError, InputError

COLOURS = [(200, 100, 20), (20, 100, 200), (10, 250, 40), (250, 30, 240), (90, 90, 90), (9, 9, 9)]
BIRDS = {
    "labels": np.array([0, 0, 1, 1, 2, 2], np.int16),
    "train": np.array([True, False, True, True, False, True]),
    "class_names": np.array(["Albatross", "Ani", "Auklet"]),
}
Save = Callable[..., None]


@pytest.fixture
def birds(tmp_path: Path, save_packed: Save) -> Path:
    save_packed(tmp_path / "CUB/cub100_jpeg.npz", COLOURS, "JPEG", **BIRDS)
    return tmp_path


@pytest.mark.parametrize(("split", "rows"), [("train", [0, 2, 3, 5]), ("test", [1, 4])])
def test_the_flag_splits(birds: Path, split: str, rows: list[int]) -> None:
    part = load("cub", split, birds, size=6)
    assert part.labels.tolist() == BIRDS["labels"][rows].tolist()
    assert part.class_names == ("Albatross", "Ani", "Auklet")
    assert part.images.shape == (len(rows), 3, 6, 6)
    colours = [COLOURS[row] for row in rows]
    np.testing.assert_allclose(part.images[:, :, 3, 3].numpy(), colours, atol=3)
    two = load("cub", split, birds, 2, size=6)
    assert torch.equal(two.images, part.images[:: len(rows) // 2])


def test_default_size_of_the_birds(birds: Path) -> None:
    assert load("cub", "test", birds).images.shape == (2, 3, 224, 224)
    with pytest.raises(InputError, match="size=0 must be at least 1"):
        load("cub", "test", birds, size=0)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("labels", BIRDS["labels"][:4], r"labels \[4\] of int16, train \[6\]"),
        ("labels", BIRDS["labels"].astype(float), "of float64"),
        ("labels", BIRDS["labels"] + 1, r"labels 1\.\.3 for 3 class names"),
        ("labels", BIRDS["labels"] - 1, r"labels -1\.\.1 for 3 class names"),
        ("train", BIRDS["train"][:2], r"train \[2\] of bool"),
        ("train", BIRDS["train"].astype(int), "of int64 and class_names"),
        ("class_names", np.arange(3), r"class_names \[3\] of int64"),
        ("class_names", np.array([["a"], ["b"], ["c"]]), r"class_names \[3, 1\]"),
    ],
)
def test_fields_that_do_not_fit(
    tmp_path: Path, save_packed: Save, field: str, value: np.ndarray, message: str
) -> None:
    content = {**BIRDS, field: value}
    save_packed(tmp_path / "CUB/cub100_jpeg.npz", COLOURS, "JPEG", **content)
    with pytest.raises(FileFormatError, match=rf"cub100_jpeg\.npz has .*{message}"):
        load("cub", data=tmp_path)


def test_a_field_that_lacks(tmp_path: Path, save_packed: Save) -> None:
    save_packed(tmp_path / "CUB/cub100_jpeg.npz", COLOURS, train=BIRDS["train"])
    with pytest.raises(FileFormatError, match="lacks a field: .*labels"):
        load("cub", data=tmp_path)


@pytest.mark.parametrize(
    "offsets",
    [[0], [], [1, 9], [0, 9, 9], [0, 9, 5], [0.0, 9.0], [[0, 9]], [0, -1], ["0", "9"]],
)
def test_offsets_that_do_not_rise(tmp_path: Path, offsets: list[object]) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, data=np.zeros(9, np.uint8), offsets=np.array(offsets))
    for read in (read_packed, count_packed):
        with pytest.raises(FileFormatError, match="not whole numbers rising from 0"):
            read(path)


@pytest.mark.parametrize("last", [8, 10, 2**62])
def test_offsets_end_where_the_data_end(tmp_path: Path, last: int) -> None:
    np.savez(tmp_path / "x.npz", data=np.zeros(9, np.uint8), offsets=np.array([0, last]))
    with pytest.raises(FileFormatError, match=f"offsets up to {last} for 9 bytes"):
        read_packed(tmp_path / "x.npz")


@pytest.mark.parametrize("data", [np.zeros(9), np.zeros((3, 3), np.uint8), np.zeros(9, np.int8)])
def test_data_that_are_no_bytes(tmp_path: Path, data: np.ndarray) -> None:
    np.savez(tmp_path / "x.npz", data=data, offsets=np.array([0, 9]))
    with pytest.raises(FileFormatError, match="not bytes"):
        read_packed(tmp_path / "x.npz")


def test_only_kept_images_are_decoded_and_damage_names_its_row(birds: Path) -> None:
    path = birds / "CUB/cub100_jpeg.npz"
    with np.load(path) as archive:
        content = dict(archive)
    start, end = content["offsets"][2:4]
    content["data"][start + 20 : end] = 7
    np.savez(path, **content)
    assert load("cub", "train", birds, limit=1).labels.tolist() == [0]
    with pytest.raises(FileFormatError, match=r"npz holds a damaged image in row 2"):
        load("cub", "train", birds)


@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_a_file_that_is_cut(birds: Path, share: float) -> None:
    path = birds / "CUB/cub100_jpeg.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(FileFormatError, match="not an npz file of arrays"):
        load("cub", data=birds)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[", "not a JSON file"),
        (b"[" * 100_000, "not a JSON file"),
        (b"\xff\xfe\xfd", "not a JSON file"),
        (b"{}", "describes a dict, not a list where there are 2"),
        (b'[{"a": "x", "b": []}]', "describes 1 where there are 2"),
        (b'[{"a": "x", "b": []}, 3]', "no 'a' in row 1, a text"),
        (b'[{"a": "x", "b": []}, {"a": 3, "b": []}]', "no 'a' in row 1, a text"),
        (b'[{"a": "x", "b": ["y", 3]}, {"a": "x"}]', "no 'b' in row 0, a list of texts"),
        (b'[{"a": "x", "b": "yz"}, {"a": "x"}]', "no 'b' in row 0, a list of texts"),
    ],
)
def test_rows_of_texts(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        read_rows(path, 2, a=str, b=list)
    path.write_bytes(b'[{"a": "x", "b": ["y"]}, {"a": "", "b": [], "more": 1}]')
    assert [row["b"] for row in read_rows(path, 2, a=str, b=list)] == [["y"], []]


def test_real_birds(real_data: Path) -> None:
    parts = {split: load("cub", split, real_data, size=8) for split in ("train", "test")}
    assert (len(parts["train"]), len(parts["test"])) == (2_999, 2_903)
    for part in parts.values():
        assert part.labels.unique().tolist() == list(range(100))
        assert part.class_names[0] == "Black_footed_Albatross"
    assert int(parts["train"].labels.bincount().max()) == 30
