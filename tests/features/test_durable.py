"""Durable rows: what is committed comes back, and every kind of damage is noticed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError, LabelError
from laplace_metric.models._shards import DurableRows
from laplace_metric.models._store import FeatureStore

FIRST, SECOND, LAST = (f"features-00000{i}.safetensors" for i in range(3))
INDEX = "features.json"
ROWS = torch.randn(3000, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(3000) % 11


def filled(folder: Path, stop: int = 2000, every: int = 600) -> Path:
    """Batches of 100, a commit after ``every`` rows; the rest is written, but not committed."""
    store = DurableRows(folder)
    for start in range(0, stop, 100):
        store.append(ROWS[start : start + 100], LABELS[start : start + 100])
        if (start + 100) % every == 0:
            store.commit()
    store.flush()
    store.close()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_holds(store: DurableRows, n: int) -> None:
    features, labels = store.read(0, n)
    assert len(store) == n
    assert torch.equal(features, ROWS[:n])
    assert torch.equal(labels, LABELS[:n])


def test_uncommitted_rows_are_removed_and_appending_goes_on(tmp_path):
    assert len(content(filled(tmp_path))) == 5
    store = DurableRows.resume(tmp_path)
    assert_holds(store, 1800)
    assert set(content(tmp_path)) == {FIRST, SECOND, LAST, INDEX}
    store.append(ROWS[1800:2500], LABELS[1800:2500])
    assert_holds(store, 2500)  # readable before it is committed
    assert store.labels(1799, 1801).equal(LABELS[1799:1801])
    store.commit()
    assert_holds(DurableRows.resume(tmp_path), 2500)
    assert store.read(700, 703)[0].equal(ROWS[700:703])
    assert store.rows(torch.tensor([2499, 0, 0])).equal(ROWS[[2499, 0, 0]])


def test_a_shard_is_a_safetensors_file(tmp_path):
    filled(tmp_path)
    for number, name in enumerate((FIRST, SECOND, LAST)):
        part = slice(600 * number, 600 * (number + 1))
        tensors = load_file(tmp_path / name)
        assert set(tensors) == {"features", "labels"}
        assert tensors["features"].equal(ROWS[part])
        assert tensors["labels"].equal(LABELS[part])
        assert oct((tmp_path / name).stat().st_mode) == oct((tmp_path / INDEX).stat().st_mode)


def test_what_was_not_finished_is_removed(tmp_path):
    filled(tmp_path, 600)
    before = content(tmp_path)
    for name in (f".{INDEX}", f".{SECOND}"):
        (tmp_path / f"{name}.lock").touch()
        (tmp_path / f"{name}.0123456789abcdef.tmp").mkdir()
        (tmp_path / f"{name}.0123456789abcdef.tmp" / "content").write_bytes(b"{")
    for name in (SECOND, LAST):
        (tmp_path / name).write_bytes(b"{")
    foreign = dict.fromkeys(("notes.txt", "features-notes.md"), b"of somebody else")
    for name, text in foreign.items():
        (tmp_path / name).write_bytes(text)
    assert_holds(DurableRows.resume(tmp_path), 600)
    assert content(tmp_path) == {**before, **foreign}


def failing(*_: object) -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("step", ["write_atomically", "sha256_of", "writing"])
def test_a_commit_that_fails_can_be_repeated(tmp_path, monkeypatch, step):
    store = DurableRows.resume(filled(tmp_path, 600))
    before = content(tmp_path)
    store.append(ROWS[600:700], LABELS[600:700])
    with monkeypatch.context() as patch:
        patch.setattr(files, step, failing)
        with pytest.raises(OSError, match="disk full"):
            store.commit()
    assert {name: content(tmp_path)[name] for name in before} == before
    assert len(store) == 700
    store.append(ROWS[700:750], LABELS[700:750])
    store.commit()  # the same process tries again
    assert_holds(store, 750)
    assert_holds(DurableRows.resume(tmp_path), 750)


def test_an_append_that_fails_can_be_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr("laplace_metric.models._shards.SHARD_BYTES", 300 * 136)
    store = DurableRows.resume(filled(tmp_path, 600))
    store.append(ROWS[600:700], LABELS[600:700])
    write, written = DurableRows._write, []

    def failing_later(self, path, columns):
        written.append(path)
        return write(self, path, columns) if len(written) < 4 else failing()

    for part in (slice(700, 950), slice(950, 2000)):  # one shard's worth, and four
        with monkeypatch.context() as patch:
            patch.setattr(DurableRows, "_write", failing if part.start == 700 else failing_later)
            with pytest.raises(OSError, match="disk full"):
                store.append(ROWS[part], LABELS[part])
        assert_holds(store, part.start)
        store.append(ROWS[part], LABELS[part])
        assert_holds(store, part.stop)
    store.commit()
    assert_holds(DurableRows.resume(tmp_path), 2000)


def test_complete(tmp_path):
    store = DurableRows(tmp_path)
    store.append(ROWS[:5], LABELS[:5])
    store.complete()
    with pytest.raises(InputError, match="complete: nothing can be appended"):
        store.append(ROWS[:5], LABELS[:5])
    store = DurableRows.resume(tmp_path)
    assert store.exhausted
    assert_holds(store, 5)


def test_commits_without_rows(tmp_path):
    store = DurableRows(tmp_path)
    before = content(tmp_path)
    store.commit()
    assert content(tmp_path) == before
    assert len(DurableRows.resume(tmp_path)) == 0
    store.append(ROWS[:0], LABELS[:0])
    store.commit()
    store.append(ROWS[:9], LABELS[:9])
    assert len(DurableRows.resume(tmp_path)) == 0
    assert set(content(tmp_path)) == {INDEX}


def test_the_index_grows_by_one_line_a_shard(tmp_path):
    store = DurableRows(tmp_path)
    for row in range(60):
        store.append(ROWS[row : row + 1], LABELS[row : row + 1])
        store.commit()
    assert (tmp_path / INDEX).stat().st_size < 400 + 60 * 160
    assert_holds(DurableRows.resume(tmp_path), 60)


def test_another_process_that_took_the_folder_is_noticed(tmp_path):
    first = DurableRows(tmp_path)
    first.append(ROWS[:9], LABELS[:9])
    first.commit()
    second = DurableRows.resume(tmp_path)
    second.append(ROWS[9:12], LABELS[9:12])
    second.commit()
    first.append(ROWS[20:30], LABELS[20:30])
    before = (tmp_path / INDEX).read_bytes()
    with pytest.raises(FileFormatError, match="written by another process"):
        first.commit()
    assert (tmp_path / INDEX).read_bytes() == before


def test_rows_that_do_not_fit(tmp_path):
    store = DurableRows(tmp_path)
    store.append(ROWS[:5], LABELS[:5])
    for features, labels, error in [
        (ROWS[:2, :3], LABELS[:2], InputError),
        (ROWS[:2].double(), LABELS[:2], InputError),
        (ROWS[:2], LABELS[:3], LabelError),
    ]:
        with pytest.raises(error):
            store.append(features, labels)
    assert_holds(store, 5)


@pytest.mark.parametrize("name", [FIRST, LAST, INDEX])
def test_a_folder_in_use_is_not_started_again(tmp_path, name):
    filled(tmp_path)
    for other in set(content(tmp_path)) - {name}:
        (tmp_path / other).unlink()
    before = content(tmp_path)
    for start in (DurableRows, lambda folder: FeatureStore(durable=folder)):
        with pytest.raises(InputError, match=r"already: reopen it with DurableRows.resume"):
            start(tmp_path)
    assert content(tmp_path) == before


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def edited(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def swapped(path: Path) -> None:
    """The contents of this shard and of the first one, exchanged."""
    one, other = path.read_bytes(), (path.parent / FIRST).read_bytes()
    path.write_bytes(other)
    (path.parent / FIRST).write_bytes(one)


DAMAGE = {
    "the header": (FIRST, lambda p: flip(p, 20), "sha256 is not the one"),
    "a feature": (SECOND, lambda p: flip(p, 5000), "sha256 is not the one"),
    "the last byte": (LAST, lambda p: flip(p, -1), "sha256 is not the one"),
    "cut by a byte": (LAST, lambda p: os.truncate(p, p.stat().st_size - 1), "is damaged"),
    "cut": (FIRST, lambda p: os.truncate(p, 10), "is damaged"),
    "empty": (SECOND, lambda p: os.truncate(p, 0), "is damaged"),
    "longer": (SECOND, lambda p: os.truncate(p, p.stat().st_size + 1), "is damaged"),
    "swapped": (FIRST, lambda p: swapped(p.parent / SECOND), "is damaged"),
    "missing": (SECOND, Path.unlink, "cannot be read: No such file"),
    "no index": (INDEX, Path.unlink, "holds no features.json"),
    "half an index": (INDEX, lambda p: os.truncate(p, 100), "is damaged"),
    "another index": (INDEX, lambda p: p.write_text("[1]"), "not written by"),
    "another kind": (INDEX, lambda p: edited(p, format="other"), "not written by"),
    "newer": (INDEX, lambda p: edited(p, version=2), "has version 2, this package reads 1"),
    "fewer shards": (INDEX, lambda p: edited(p, shards={}), "does not have the sha256"),
    "exhausted": (INDEX, lambda p: edited(p, exhausted=True), "does not have the sha256"),
    "width": (INDEX, lambda p: edited(p, width=31), "does not have the sha256"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_and_nothing_is_changed(tmp_path, kind):
    name, damage, message = DAMAGE[kind]
    damage(filled(tmp_path) / name)
    before = content(tmp_path)
    for resume in (DurableRows.resume, FeatureStore.resume):
        with pytest.raises(FileFormatError, match=message) as error:
            resume(tmp_path)
        assert "delete it and fit again" in str(error.value)
        assert name in str(error.value)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", [FIRST, SECOND, INDEX])
def test_one_flipped_bit_anywhere(tmp_path, name):
    path = filled(tmp_path, 1200) / name
    size, g = path.stat().st_size, torch.Generator().manual_seed(0)
    for position in torch.randint(size, (100,), generator=g).tolist():
        flip(path, position, position % 8)
        with pytest.raises(FileFormatError):
            DurableRows.resume(tmp_path)
        flip(path, position, position % 8)
    assert_holds(DurableRows.resume(tmp_path), 1200)


def test_a_folder_that_may_only_be_read(tmp_path):
    filled(tmp_path, 1200)
    for name in (FIRST, SECOND, INDEX):
        (tmp_path / name).chmod(0o400)
    assert_holds(DurableRows.resume(tmp_path), 1200)


def test_an_interrupted_store_hands_out_the_same_blocks(tmp_path):
    uninterrupted = FeatureStore.of(ROWS.repeat(30, 1), LABELS.repeat(30))
    features, labels = ROWS.repeat(30, 1), LABELS.repeat(30)
    store = FeatureStore(durable=tmp_path)
    for start in range(0, 50_000, 1000):
        part = slice(start, start + 1000)
        store.append(features[part], labels[part], where=f"batch {start}")
        if start == 40_000:
            store.commit()
    store.close()
    store = FeatureStore.resume(tmp_path, "cpu")
    assert (len(store), store.exhausted, store.spilled) == (41_000, False, True)
    store.append(features[41_000:], labels[41_000:], where="the rest")
    store.complete()
    store.close()
    store = FeatureStore.resume(tmp_path, dtype=torch.float64)
    assert store.exhausted
    for resumed, expected in zip(store.blocks(), uninterrupted.blocks(), strict=True):
        assert resumed.start == expected.start
        assert resumed.features.equal(expected.features.double())
        assert resumed.labels.equal(expected.labels)
