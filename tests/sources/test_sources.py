"""Every kind of data against what was written; what cannot be read names its place."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from laplace_metric.cli._open_source import open_source
from laplace_metric.cli._source import ReadOptions
from laplace_metric.errors import FileFormatError, InputError, LabelError


@pytest.fixture
def said():
    return []


def write_image(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


@pytest.fixture
def images(tmp_path):
    g = np.random.default_rng(0)
    arrays = {f"{c}/{i}.png": g.integers(0, 255, (6, 4), np.uint8) for c in "ba" for i in range(3)}
    for name, array in arrays.items():
        write_image(tmp_path / "im" / name, array)
    return tmp_path / "im", arrays


def test_images_by_class(images, said):
    folder, arrays = images
    (folder / ".DS_Store").touch()
    (folder / "a" / "notes.txt").touch()
    source = open_source(folder, None, said.append)
    assert source.ids == tuple(sorted(arrays))
    assert source.class_names == ("a", "b")
    (first, labels), (second, _) = source.batches(4, labelled=True)
    expected = np.stack([arrays[name] for name in sorted(arrays)])[:, None] / np.float32(255)
    np.testing.assert_allclose(torch.cat([first, second]).numpy(), expected, atol=1e-7)
    assert labels.tolist() == [0, 0, 0, 1]
    assert any("grey" in text for text in said)
    assert any("1 files that are no images" in text for text in said)


def test_part_of_a_source_is_read_in_its_order(images):
    source = open_source(images[0])
    part = source.take([4, 1])
    assert part.ids == (source.ids[4], source.ids[1])
    assert part.labels.tolist() == [1, 0]
    assert torch.equal(part.read([0, 1]), source.read([4, 1]))
    assert part.fingerprint != source.fingerprint


def test_colour_is_kept(tmp_path):
    write_image(tmp_path / "flat" / "x.png", np.full((2, 2, 3), (255, 0, 51), np.uint8))
    source = open_source(tmp_path / "flat")
    assert source.classes is None
    assert source.read([0])[0, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])
    with pytest.raises(LabelError, match="DIR/<class>"):
        source.require_classes("fit")


def test_unreadable_images_are_named_or_skipped(images, said):
    folder, _ = images
    whole = (folder / "b" / "1.png").read_bytes()
    (folder / "b" / "1.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"b/1.png cannot.*skip_unreadable=True"):
        list(open_source(folder).batches(10))
    source = open_source(folder, ReadOptions(skip_unreadable=True), said.append)
    assert len(source) == 5
    assert "b/1.png" not in source.ids
    assert source.read(range(5)).shape == (5, 1, 6, 4)
    assert any("skipped 1 of 6 images" in text for text in said)


@pytest.mark.parametrize(
    ("name", "says"),
    [("empty", "holds no image"), ("none", "does not exist"), ("a.doc", "no kind that can be")],
)
def test_paths_that_hold_nothing(name, says, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.doc").touch()
    with pytest.raises(InputError, match=says):
        open_source(tmp_path / name)


def test_csv(tmp_path, said):
    path = tmp_path / "t.csv"
    path.write_bytes('\ufefftext,label,id\n"one, two",x,7\n\nthree,y,8\n'.encode())
    source = open_source(path, None, said.append)
    assert source.ids == ("7", "8")
    assert source.classes == ("x", "y")
    assert source.read([1, 0]) == ["three", "one, two"]
    assert said == [
        f"{path}: texts from column 'text', labels from column 'label', ids from column 'id'"
    ]
    told = open_source(path, ReadOptions(text_column="label", label_column="id"))
    assert told.read([0]) == ["x"]
    assert told.classes == ("7", "8")
    (tmp_path / "t.tsv").write_text("text\tother\na, b\tc\n")
    bare = open_source(tmp_path / "t.tsv")
    assert (bare.ids, bare.classes, bare.read([0])) == (("row 1",), None, ["a, b"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"body,label\na,b\n", r"no column 'text'.*--text-column.*; its columns: 'body', 'label'"),
        (b"", "its columns: none"),
        (b"text,label\n", "holds no row"),
        (b"text,label\na,b\nc,d,e\n", "line 3: 3 fields where the first line has 2"),
        (b"text,label\na,b\nc,\n", "row 2 has an empty label"),
        (b'text,label\n"a,b\n', "unexpected end of data"),
        (b"text,label\n\xff\xfe,b\n", "UTF-8"),
    ],
)
def test_tables_that_cannot_be_read(content, says, tmp_path):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError, match=says):
        open_source(tmp_path / "t.csv")


X = np.arange(12, dtype=np.float32).reshape(4, 3)
NAMES = ("a", "b", "a", "c")


def test_npy_with_labels(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float16))
    np.save(tmp_path / "y.npy", np.array([10, 9, 10, 9]))
    (tmp_path / "y.txt").write_text("a\nb\na\nc\n")
    source = open_source(tmp_path / "x.npy", ReadOptions(labels=tmp_path / "y.npy"))
    assert source.classes == ("10", "9", "10", "9")
    assert source.read([2, 0]).dtype == torch.float32
    assert source.read([2, 0]).tolist() == X[[2, 0]].tolist()
    named = open_source(tmp_path / "x.npy", ReadOptions(labels=tmp_path / "y.txt"))
    assert named.classes == NAMES
    assert open_source(tmp_path / "x.npy").classes is None


def test_npz_and_safetensors_hold_the_same(tmp_path):
    ids = ("p", "q", "r", "s")
    np.savez(tmp_path / "x.npz", embeddings=X, labels=np.array(NAMES), ids=np.array(ids, "S"))
    header = {"ids": json.dumps(ids), "classes": json.dumps(["a", "b", "c"])}
    tensors = {"embeddings": torch.from_numpy(X), "labels": torch.tensor([0, 1, 0, 2])}
    save_file(tensors, tmp_path / "x.safetensors", header)
    for name in ("x.npz", "x.safetensors"):
        source = open_source(tmp_path / name)
        assert (source.ids, source.classes) == (ids, NAMES), name
        assert source.read([3, 1]).tolist() == X[[3, 1]].tolist()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"embeddings": X[0]}, r"shape \(3,\): embeddings are numbers"),
        ({"embeddings": X.astype(str)}, "embeddings are numbers"),
        ({"x": X}, "no array 'embeddings'; its arrays: 'x'"),
        ({"embeddings": X, "labels": [1, 2]}, "2 labels for 4 rows"),
        ({"embeddings": X, "labels": [0.5] * 4}, "fractions"),
        ({"embeddings": X, "labels": ["a", "", "b", "c"]}, "row 2 has an empty label"),
        ({"embeddings": X[:0]}, "holds no row"),
    ],
)
def test_arrays_that_do_not_fit(arrays, says, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=says):
        open_source(tmp_path / "x.npz")


def test_pickles_and_foreign_files_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}, {}]), allow_pickle=True)
    for name in ("x.npz", "x.safetensors"):
        (tmp_path / name).write_bytes(b"no such format")
    for name in ("x.npy", "x.npz", "x.safetensors"):
        with pytest.raises(FileFormatError, match=name):
            open_source(tmp_path / name)
