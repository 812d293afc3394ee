"""Rows on disk: what is committed comes back, and every kind of damage is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models._disk_rows import NOTE, DiskRows
from laplace_metric.models._feature_store import FeatureStore
from tests.saved_files import edit

INDEX, FEATURES, CLASSES = NOTE, "features.bin", "labels.bin"
ROWS = torch.randn(3000, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(3000) % 11


def filled(folder: Path, stop: int = 2000, every: int = 600) -> Path:
    """Batches of 100, a commit after ``every`` rows; the rest is written, but not committed."""
    store = DiskRows(folder)
    for start in range(0, stop, 100):
        store.append(ROWS[start : start + 100], LABELS[start : start + 100])
        if (start + 100) % every == 0:
            store.commit()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def assert_holds(store: DiskRows, n: int) -> None:
    assert len(store) == n
    assert torch.equal(store.read(0, 0, n), ROWS[:n])
    assert torch.equal(store.read(1, 0, n), LABELS[:n])


def test_uncommitted_rows_are_cut_off_and_appending_goes_on(tmp_path):
    assert len(content(filled(tmp_path))[CLASSES]) == 2000 * 8
    store = DiskRows(tmp_path)
    assert_holds(store, 1800)
    assert content(tmp_path)[FEATURES] == ROWS[:1800].numpy().tobytes()
    assert content(tmp_path)[CLASSES] == LABELS[:1800].numpy().tobytes()
    store.append(ROWS[1800:2500], LABELS[1800:2500])
    assert_holds(store, 2500)  # readable before it is committed
    store.commit()
    assert_holds(DiskRows(tmp_path), 2500)
    assert store.read(0, 700, 703).equal(ROWS[700:703])
    assert store.rows(torch.tensor([2499, 0, 0])).equal(ROWS[[2499, 0, 0]])


def test_what_was_not_finished_is_removed_and_other_files_stay(tmp_path):
    filled(tmp_path, 600)
    before = content(tmp_path)
    (tmp_path / f".{INDEX}.0123456789abcdef.tmp").write_bytes(b"{")
    foreign = {"features-notes.md": b"of somebody else"}
    (tmp_path / "features-notes.md").write_bytes(foreign["features-notes.md"])
    assert_holds(DiskRows(tmp_path), 600)
    assert len(list(tmp_path.iterdir())) == len(before) + 1
    assert content(tmp_path) == {**before, **foreign}


def failing(*_: object) -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("step", ["write", "sync_file"])
def test_a_commit_that_fails_can_be_repeated(tmp_path, monkeypatch, step):
    store = DiskRows(filled(tmp_path, 600))
    before = content(tmp_path)[INDEX]
    store.append(ROWS[600:700], LABELS[600:700])
    with monkeypatch.context() as patch:
        patch.setattr(files, step, failing)
        with pytest.raises(OSError, match="disk full"):
            store.commit()
    assert content(tmp_path)[INDEX] == before
    store.append(ROWS[700:750], LABELS[700:750])
    store.commit()  # the same process tries again
    assert_holds(store, 750)
    assert_holds(DiskRows(tmp_path), 750)


@pytest.mark.parametrize("name", [FEATURES, CLASSES])
def test_an_append_that_fails_can_be_repeated(tmp_path, monkeypatch, name):
    store = DiskRows(filled(tmp_path, 600))
    refuse = files.refuse_link
    with monkeypatch.context() as patch:
        patch.setattr(files, "refuse_link", lambda p: failing() if p.name == name else refuse(p))
        with pytest.raises(OSError, match="disk full"):
            store.append(ROWS[600:1000], LABELS[600:1000])
    assert_holds(store, 600)
    store.append(ROWS[600:700], LABELS[600:700])
    store.commit()
    assert_holds(DiskRows(tmp_path), 700)


def test_complete_and_commits_without_rows(tmp_path):
    store = DiskRows(tmp_path)
    before = content(tmp_path)
    store.commit()
    assert content(tmp_path) == before
    assert len(DiskRows(tmp_path)) == 0
    store.append(ROWS[:0], LABELS[:0])
    store.commit()
    store.append(ROWS[:5], LABELS[:5])
    assert len(DiskRows(tmp_path)) == 0
    store.append(ROWS[:5], LABELS[:5])
    store = DiskRows(tmp_path)
    store.append(ROWS[:5], LABELS[:5])
    store.complete()
    with pytest.raises(InputError, match="complete.*appended"):
        store.append(ROWS[:5], LABELS[:5])
    store = DiskRows(tmp_path)
    assert store.exhausted
    assert_holds(store, 5)


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGE = {
    "a feature": (FEATURES, lambda p: flip(p, 5000), "sha256 is not the one"),
    "empty": (CLASSES, lambda p: os.truncate(p, 0), "is damaged"),
    "missing": (CLASSES, Path.unlink, "cannot be read: No such file"),
    "no index": (INDEX, Path.unlink, "features.safetensors does not exist"),
    "a link": (FEATURES, linked, "is a link"),
    "fewer rows": (INDEX, lambda p: edit(p, "features", rows=600), "sha256 is not the one in"),
    "another content": (INDEX, lambda p: edit(p, "features", rows="x"), "features.rows is 'x'"),
    "another type": (
        INDEX,
        lambda p: edit(p, "features", dtypes=["luck", "int64"]),
        "is damaged: AttributeError",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_and_nothing_is_changed(tmp_path, kind):
    name, damage, message = DAMAGE[kind]
    damage(filled(tmp_path) / name)
    before = content(tmp_path)
    with pytest.raises(FileFormatError, match=message) as error:
        FeatureStore(durable=tmp_path)
    assert "delete it and fit again" in str(error.value)
    assert name in str(error.value)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", [FEATURES, CLASSES, INDEX])
def test_one_flipped_bit_anywhere(tmp_path, name):
    path = filled(tmp_path, 1200) / name
    size, g = path.stat().st_size, torch.Generator().manual_seed(0)
    for position in torch.randint(size, (100,), generator=g).tolist():
        flip(path, position, position % 8)
        with pytest.raises(FileFormatError):
            DiskRows(tmp_path)
        flip(path, position, position % 8)
    for committed in content(tmp_path):
        (tmp_path / committed).chmod(0o400)
    assert_holds(DiskRows(tmp_path), 1200)  # also where it may only be read


def test_an_interrupted_store_hands_out_the_same_blocks(tmp_path):
    features, labels = ROWS.repeat(30, 1), LABELS.repeat(30)
    store = FeatureStore(durable=tmp_path)
    for start in range(0, 50_000, 1000):
        part = slice(start, start + 1000)
        store.append(features[part], labels[part], where=f"batch {start}")
        if start == 40_000:
            store.commit()
    store.close()
    store = FeatureStore(durable=tmp_path)
    assert (len(store), store.exhausted) == (41_000, False)
    store.append(features[41_000:], labels[41_000:], where="the rest")
    store.complete()
    store.close()
    store = FeatureStore(durable=tmp_path, dtype=torch.float64)
    assert store.exhausted
    uninterrupted = FeatureStore.of(features, labels)
    for resumed, expected in zip(store.blocks(), uninterrupted.blocks(), strict=True):
        assert resumed.start == expected.start
        assert resumed.features.equal(expected.features.double())
        assert resumed.labels.equal(expected.labels)
