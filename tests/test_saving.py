"""Full disks, foreign files, flipped digits, hostile names in a saved value."""

from __future__ import annotations

import errno
import json
import os
import re
from unittest.mock import Mock

import pytest
import torch

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, WriteError
from laplace_metric.io import hidden_folder, locked

KIND = files.FileKind("thing", "a saved thing", 1)


def save(folder, number):
    files.write(folder, {"n": number}, {"x": torch.full((9_000,), number)}, KIND)


def load(folder):
    content, tensors = files.read(folder, KIND)
    assert tensors["x"].eq(content["n"]).all()
    return content["n"]


@pytest.mark.parametrize(
    "work",
    [lambda folder: save(folder, 2), lambda folder: files.write_atomically(folder / "a.html", "b")],
)
@pytest.mark.parametrize("step", ["sync", "rename"])
def test_on_a_full_disk_the_old_value_is_kept(work, step, tmp_path, monkeypatch):
    """The attacks of ``tests.damage`` fill disks, kill writers and let them race."""
    save(tmp_path, 1)
    files.write_atomically(tmp_path / "a.html", "a")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "no space left")
        patch.setattr(os, {"sync": "fsync", "rename": "replace"}[step], Mock(side_effect=full))
        with pytest.raises(WriteError, match="cannot be written: .*no space left.* is kept"):
            work(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_foreign_files_are_left_alone(tmp_path):
    foreign = ("thing-notes.md", "thing-0123456789abcdef.txt", ".thing.swp", ".thing.json.tmp")
    for name in foreign:
        (tmp_path / name).write_text("mine")
    (tmp_path / "thing-folder").mkdir()
    (tmp_path / "thing-fedcba9876543210.safetensors").write_text("of a copy of mine")
    for number in (1, 2):
        save(tmp_path, number)
    assert all((tmp_path / name).read_text() == "mine" for name in foreign)
    assert len(list(tmp_path.iterdir())) == len(foreign) + 2 + 2


def test_a_json_cannot_make_save_delete_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "mine.txt").touch()
    (tmp_path / "a" / "mine.txt").touch()
    save(tmp_path / "a", 1)
    path = tmp_path / "a" / KIND.index
    for name in ("mine.txt", "../mine.txt", ["mine.txt"], {"x": 1}, None):
        path.write_text(json.dumps({**json.loads(path.read_text()), "tensors": name}))
        save(tmp_path / "a", 2)
        assert (tmp_path / "mine.txt").exists()
        assert (tmp_path / "a" / "mine.txt").exists()


def test_a_live_writer_is_not_disturbed(tmp_path):
    """Its hidden folder stays, and the next one waits for its turn."""
    with hidden_folder(tmp_path, "thing", KIND) as hidden:
        held = pytest.raises(WriteError, match="another process, which holds .thing.lock")
        with held, locked(tmp_path / ".thing.lock", seconds=0.0):
            raise AssertionError
        assert hidden.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_digit_is_noticed(tmp_path):
    files.write(tmp_path, {"n": 1.25, "f": [1 / 3, 12], "s": {"a9": "b7"}}, {}, KIND)
    path = tmp_path / KIND.index
    text = path.read_text()
    value = json.loads(text)
    for match in re.finditer(r"\d", text):
        digit = str((int(match[0]) + 1) % 10)
        changed = text[: match.start()] + digit + text[match.end() :]
        path.write_text(changed)
        try:
            same = json.loads(changed) == value  # the last digit of 1/3 may name the same number
        except ValueError:
            same = False
        if not same:
            with pytest.raises(FileFormatError):
                files.read(tmp_path, KIND)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "\0",
        b"\xff\xfe",
        '{"format": "laplace_metric.thing", "version": ' + "9" * 5000 + "}",
        '{"format": "laplace_metric.thing", "version": 1, "x": ' + "[" * 800 + "]" * 800 + "}",
        "1" * 10_000,
        "null",
        '"text"',
    ],
)
def test_malformed_json_is_named(text, tmp_path):
    (tmp_path / KIND.index).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileFormatError):
        files.read(tmp_path, KIND)


@pytest.mark.parametrize("name", ["\0", "a\0b", "\ud800", "../x", "", 3, None, [], "x" * 9999])
@pytest.mark.parametrize("key", ["tensors", "heads", "sha256"])
def test_hostile_file_names_are_named(key, name, tmp_path):
    save(tmp_path, 1)
    path = tmp_path / KIND.index
    path.write_text(json.dumps(files.sealed({**json.loads(path.read_text()), key: name})))
    with pytest.raises(FileFormatError):
        files.read(tmp_path, KIND)


def test_mapped_files_are_checked_as_asked(tmp_path):
    save(tmp_path, 3)
    (tensors,) = tmp_path.glob("*.safetensors")
    whole = bytearray(tensors.read_bytes())
    for position, noticed in ((20, True), (len(whole) - 1, False)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        tensors.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="sha256"):
            files.read(tmp_path, KIND, mapped=True, verify=True)
        if noticed:
            with pytest.raises(FileFormatError, match="sha256"):
                files.read(tmp_path, KIND, mapped=True)
    tensors.write_bytes(whole[:-1])
    with pytest.raises(FileFormatError, match="sha256"):
        files.read(tmp_path, KIND, mapped=True)


def test_a_digest_knows_order_shapes_and_types():
    row, column = torch.zeros(1, 2), torch.zeros(2, 1)
    parts = ([row], [column], [row.double()], [row, column], [column, row], [row + 1])
    assert len({files.digest("a", part) for part in parts} | {files.digest("b", [row])}) == 7


def test_a_json_without_end_is_refused(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr("laplace_metric.io.JSON_BYTES", 100)
    with pytest.raises(FileFormatError, match="it has more than 100 bytes"):
        load(tmp_path)
