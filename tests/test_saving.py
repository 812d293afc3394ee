"""Full disks, foreign files, flipped bits, hostile names and numbers in a saved file."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file, save_file

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError, WriteError
from laplace_metric.io import _container, _json, locked
from laplace_metric.io._container import CODES
from laplace_metric.io._lock import is_at
from tests.saved_files import header_of, of_version, put_content, with_hash

KIND = files.Kind("thing", "a saved thing", 1)


def save(path, number):
    part = files.Part(KIND, {"n": number}, {"x": torch.full((9_000,), number)})
    files.write(path, part)


def load(path):
    content, arrays = files.read(path, KIND)
    assert arrays["x"].eq(content["n"]).all()
    return content["n"]


def bytes_of(array):
    return array.reshape(-1).view(torch.uint8)


def arrays_of_every_type():
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 120, (3, 8), dtype=torch.uint8, generator=g)
    found = {name: bits.to(getattr(torch, name)) for name in CODES}
    found |= {"none": torch.zeros(0, 3), "one": torch.tensor(1 / 3), "odd": bits[:, 1:6]}
    return found | {"turned": torch.randn(3, 5, generator=g).T}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("verify", [None, False, True])
def test_arrays_of_every_type_come_back(mapped, verify, tmp_path):
    path, arrays = tmp_path / "a", arrays_of_every_type()
    content = {"é": [1 / 3, None, {"x": "\ud800"}]}
    files.write(path, files.Part(KIND, content, arrays))
    saved = files.SavedFile(path, mapped=mapped, verify=verify)
    part = saved.part(KIND)
    assert part.content == content
    assert part.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert part.arrays[name].dtype == array.dtype
        assert part.arrays[name].shape == array.shape
        assert (
            part.arrays[name]
            .reshape(-1)
            .view(torch.uint8)
            .equal(array.reshape(-1).view(torch.uint8))
        )


def test_any_reader_of_safetensors_reads_the_arrays(tmp_path):
    """The oracle is the package safetensors."""
    path, arrays = tmp_path / "a", arrays_of_every_type()
    files.write(path, files.Part(KIND, {"n": 1}, arrays))
    theirs = load_file(path)
    assert theirs.keys() == {f"thing/{name}" for name in arrays}
    for name, array in arrays.items():
        other = theirs[f"thing/{name}"]
        assert other.dtype == array.dtype
        assert bytes_of(other).equal(bytes_of(array))
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["content"])["thing"]["value"] == {"n": 1}


def test_numbers_are_read_without_torch(tmp_path):
    path = tmp_path / "a"
    files.write(path, files.Part(KIND, {"n": 1}, {"x": np.arange(6.0).reshape(2, 3).T}))
    assert np.array_equal(load_numpy(path)["thing/x"], np.arange(6.0).reshape(2, 3).T)
    code = f"""
import sys
from pathlib import Path
from laplace_metric import io as files
kind = files.Kind("thing", "a saved thing", 1)
content, arrays = files.read(Path({str(path)!r}), kind, torch=False)
assert arrays["x"].tolist() == [[0, 3], [1, 4], [2, 5]] and content == {{"n": 1}}
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_array_is_aligned_and_no_byte_is_left_out(tmp_path):
    files.write(tmp_path / "a", files.Part(KIND, {}, arrays_of_every_type()))
    table, end = header_of(tmp_path / "a")["table"], 0
    data = (tmp_path / "a").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    widths = {code: torch.empty(0, dtype=getattr(torch, n)).itemsize for n, code in CODES.items()}
    for entry in table.values():
        start, stop = entry["data_offsets"]
        assert start == end
        assert (begin + start) % widths[entry["dtype"]] == 0
        end = stop
    assert begin + end == len(data)


def test_what_safetensors_does_not_hold_is_refused(tmp_path):
    with pytest.raises(InputError, match="thing/x.*array of complex128"):
        files.write(
            tmp_path / "a", files.Part(KIND, {}, {"x": torch.zeros(2, dtype=torch.cdouble)})
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "work",
    [
        lambda folder: save(folder / "a", 2),
        lambda folder: files.write_atomically(folder / "a", "b"),
    ],
)
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_on_a_full_disk_the_old_value_is_kept(work, step, tmp_path, monkeypatch):
    """The attacks of ``tests.damage`` fill disks, kill writers and let them race."""
    save(tmp_path / "a", 1)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "no space left")
        patch.setattr(os, step, Mock(side_effect=full))
        with pytest.raises(WriteError, match="cannot be written: .*no space left.* is kept"):
            work(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o027)
    try:
        save(tmp_path / "a", 1)
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.name != "posix", reason="locks of files that are open")
def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_not_disturbed(tmp_path):
    path, foreign = tmp_path / "a", (".a.swp", ".a.0123.tmp", "a.0123456789abcdef.tmp", ".b.tmp")
    for name in foreign:
        (tmp_path / name).write_text("mine")
    left = tmp_path / ".a.0123456789abcdef.tmp"
    left.write_text("of a killed writer")
    with files.writing(path) as living:
        assert not left.exists()
        save(path, 1)  # another writer, which is done first
        assert living.exists()
        living.write_text("the last one counts")
    assert path.read_text() == "the last one counts"
    assert {p.name for p in tmp_path.iterdir()} == {"a", *foreign}
    assert all((tmp_path / name).read_text() == "mine" for name in foreign)


def test_a_lock_is_held_by_one(tmp_path):
    path = tmp_path / ".lock"
    with locked(path):
        assert path.exists()
        with pytest.raises(WriteError, match=r"another process.*\.lock"), locked(path):
            raise AssertionError
    assert not path.exists()
    with pytest.raises(ValueError, match="inside"), locked(path):
        raise ValueError("inside")
    assert not path.exists()
    with locked(path), path.open() as file:
        assert is_at(file.fileno(), path)


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "a"
    content = {"n": 1.25, "f": [1 / 3, 12], "s": {"a9": "b\u00e9"}}
    files.write(path, files.Part(KIND, content, {"x": np.arange(3), "y": np.ones(2, np.float32)}))
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=str(path)):
            files.read(path, KIND, torch=False)
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(FileFormatError, match=str(path)):
            files.read(path, KIND, torch=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "nested more than 100 deep"),
        ('{"a":' * 100_000, "nested more than 100 deep"),
        ('{"thing": ' + "[" * 800 + "]" * 800 + "}", "nested more than 100 deep"),
        ("\0", "is damaged"),
        ("", "is damaged"),
        ('{"thing": {"kind": "thing", "version": ' + "9" * 5000 + "}}", "is damaged"),
        ('{"thing": {"kind": "thing", "version": 1, "value": null}}', "is no JSON object"),
        ('{"thing": {"kind": "thing", "version": "1", "value": {}}}', "of version '1'"),
        ('{"thing": {"kind": "other", "version": 1, "value": {}}}', "is not a saved thing"),
        ('{"thing": 3}', "is not a saved thing"),
        ("1" * 10_000, "is damaged"),
        ("null", "the content is None, not an object"),
        ('"text"', "the content is 'text', not an object"),
        ("[]", r"the content is \[\], not an object"),
    ],
)
def test_malformed_content_is_named(content, message, tmp_path):
    path = tmp_path / "a"
    save(path, 1)
    put_content(path, content)
    with pytest.raises(FileFormatError, match=message) as caught:
        files.read(path, KIND)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_table_of_arrays_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "a"
    tables = [
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        {"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [2]}},
        {"x": None},
        {
            "x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "y": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        },
    ]
    for table in tables:
        metadata = {"sha256": "0" * 64, "data_sha256": "", "format": "laplace_metric"}
        metadata |= {"version": "1", "content": "{}"}
        text = json.dumps({"__metadata__": metadata, **table}, separators=(",", ":")).encode()
        header = with_hash(text)
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        for mapped in (False, True):
            with pytest.raises(FileFormatError, match="a is damaged"):
                files.SavedFile(path, mapped=mapped, verify=False)


def test_files_that_are_not_ours_are_named(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(FileFormatError, match="a does not.*exist"):
        load(path)
    for content, message in {
        b'{"format": "laplace_metric.thing"}': "Version 0.3 saved JSON",
        b"": "not a safetensors file",
        b"\xff" * 100: "not a safetensors file",
        b"\0" * 100: "not written by laplace_metric",
    }.items():
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            load(path)
    save_file({"x": torch.ones(3)}, path, {"format": "pt"})
    with pytest.raises(FileFormatError, match="a was not.*laplace_metric"):
        load(path)
    save(path, 1)
    of_version(path, "thing", 3)
    with pytest.raises(FileFormatError, match="thing.*version 3.*reads 1"):
        load(path)
    with pytest.raises(FileFormatError, match="folder.*0.3 saved folders"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"folder: give .*thing\.safetensors"):
        save(tmp_path, 1)


def test_mapped_files_are_checked_as_asked(tmp_path):
    path = tmp_path / "a"
    save(path, 3)
    whole = path.read_bytes()
    for position, noticed in ((20, True), (len(whole) - 1, False)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="sha256|written by"):
            files.SavedFile(path, mapped=True, verify=True)
        if noticed:
            with pytest.raises(FileFormatError, match="sha256|written by"):
                files.SavedFile(path, mapped=True)
    path.write_bytes(whole[:-1])
    with pytest.raises(FileFormatError, match="bytes of arrays"):
        files.SavedFile(path, mapped=True)


def test_a_mapped_file_may_be_replaced_and_its_arrays_changed(tmp_path):
    path = tmp_path / "a"
    save(path, 1)
    saved = files.SavedFile(path, mapped=True)
    assert not saved.replaced()
    save(path, 2)
    assert saved.replaced()
    array = saved.part(KIND).arrays["x"]
    assert array.eq(1).all()
    array.fill_(7)
    assert load(path) == 2
    path.unlink()
    assert saved.replaced()


def test_an_error_that_names_the_file_passes_as_it_is(tmp_path):
    path = tmp_path / "a"
    save(path, 1)
    saved = files.SavedFile(path)
    said = f"{path} is of another model."
    with pytest.raises(FileFormatError) as found, saved.checked():
        raise FileFormatError(said)
    assert str(found.value) == said
    with pytest.raises(FileFormatError) as found, saved.checked():
        raise FileFormatError("it is of another model.")
    assert str(found.value) == f"{path}: it is of another model."


def test_a_digest_knows_order_shapes_and_types():
    row, column = torch.zeros(1, 2), torch.zeros(2, 1)
    parts = ([row], [column], [row.double()], [row, column], [column, row], [row + 1])
    assert len({files.digest("a", part) for part in parts} | {files.digest("b", [row])}) == 7


def test_a_header_without_end_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a"
    save(path, 1)
    monkeypatch.setattr(_container, "HEADER_BYTES", 100)
    with pytest.raises(FileFormatError, match="a is not.*safetensors"):
        load(path)
    with pytest.raises(InputError, match="100 at most"):
        save(path, 2)


def test_json_may_be_nested_up_to_a_limit():
    for depth, fits in ((_json.MOST_DEPTH, True), (_json.MOST_DEPTH + 1, False)):
        text = "[" * depth + "]" * depth
        if fits:
            assert _json.parsed(text) == json.loads(text)
        else:
            with pytest.raises(ValueError, match="nested more than"):
                _json.parsed(text)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda f: f.number("none"), "part.none is None, not a number"),
        (lambda f: f.number("gone"), "part.gone is missing, not a number"),
        (lambda f: f.number("nan"), "part.nan is nan, not a number"),
        (lambda f: f.number("huge"), "part.huge is 1000"),
        (lambda f: f.number("flag"), "part.flag is True, not a number"),
        (lambda f: f.number("two", most=1), "part.two is 2, not a number"),
        (lambda f: f.share("one"), "part.one is 1, not a number between 0 and 1"),
        (lambda f: f.whole("half"), "part.half is 0.5, not a whole number of at least 0"),
        (lambda f: f.whole("huge"), "part.huge is 1000"),
        (lambda f: f.whole("wide"), "part.wide is 9223372036854775808, not a whole number"),
        (lambda f: f.whole("flag"), "part.flag is True, not a whole number"),
        (lambda f: f.flag("one"), "part.one is 1, not true or false"),
        (lambda f: f.text("one"), "part.one is 1, not a text"),
        (lambda f: f.text("word", ("a", "b")), "part.word is 'w', not one of a, b"),
        (lambda f: f.items("word"), "part.word is 'w', not a list of str"),
        (lambda f: f.items("list", int), "part.list is .1, True., not a list of int"),
        (lambda f: f.inner("one"), "part.one is 1, not an object"),
        (lambda f: f.inner("inside").whole("k"), "part.inside.k is missing"),
        (lambda f: files.Fields([]), "the content is .., not an object"),
    ],
)
def test_values_of_another_type_or_range_are_named(read, message):
    content = {"none": None, "nan": math.nan, "huge": 10**400, "flag": True, "two": 2, "one": 1}
    content |= {"wide": 2**63, "half": 0.5, "word": "w", "list": [1, True], "inside": {}}
    with pytest.raises(FileFormatError, match=message):
        read(files.Fields(content, "part"))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_arrays_of_another_kind_or_range_are_named(make):
    x = make([[0.5, 1.0]])
    dtype = str(x.dtype).removeprefix("torch.")
    assert files.checked_array("x", x, [1, None], dtype=dtype, least=0, most=1) is x
    for array, how, message in [
        (None, {}, "x is missing"),
        (make([[1, 2]]), {}, "x is int64, not floating-point"),
        (x, {"dtype": "float16"}, f"x is {dtype}, not float16"),
        (x[0], {}, r"x has shape \[2\], not \[1, 'any'\]"),
        (x, {"most": 0.9}, "x holds 1, which is not from -inf to 0.9"),
        (x - 1, {"least": 0}, "x holds -0.5, which is not from 0 to inf"),
        (x * math.nan, {"infinite": True}, "x holds nan, which is not finite"),
        (x * math.inf, {}, "x holds inf, which is not finite"),
    ]:
        with pytest.raises(FileFormatError, match=message):
            files.checked_array("x", array, [1, None], **how)
    files.checked_array("x", x * math.inf, [1, 2], infinite=True)
    files.checked_array("x", x * math.nan, [1, 2], values=False)
