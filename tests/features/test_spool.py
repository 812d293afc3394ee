"""Durable rows: what is committed comes back, and every kind of damage is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from laplace_metric._utils import files
from laplace_metric.errors import FileFormatError, InputError, LabelError
from laplace_metric.models.features import FeatureStore, Spool

FILES = ("features.bin", "labels.bin", "commits.jsonl", "spool.json")
ROWS = torch.randn(3000, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(3000) % 11


def filled(folder: Path, stop: int = 2000, every: int = 600) -> Path:
    """Batches of 100, a commit after ``every`` rows, and the rest uncommitted."""
    spool = Spool(folder)
    for start in range(0, stop, 100):
        spool.append(ROWS[start : start + 100], LABELS[start : start + 100])
        if (start + 100) % every == 0:
            spool.commit()
    spool.close()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_holds(spool: Spool, n: int) -> None:
    features, labels = spool.read(0, n)
    assert len(spool) == n
    assert torch.equal(features, ROWS[:n])
    assert torch.equal(labels, LABELS[:n])


def test_uncommitted_rows_are_cut_and_appending_goes_on(tmp_path):
    spool = Spool.resume(filled(tmp_path))
    assert_holds(spool, 1800)
    assert (tmp_path / "features.bin").stat().st_size == ROWS[:1800].nbytes
    assert (tmp_path / "labels.bin").stat().st_size == LABELS[:1800].nbytes
    spool.append(ROWS[1800:2500], LABELS[1800:2500])
    assert_holds(spool, 2500)  # readable before it is committed
    spool.commit()
    assert_holds(Spool.resume(tmp_path), 2500)
    assert spool.read(700, 703)[0].equal(ROWS[700:703])
    assert spool.rows(torch.tensor([2499, 0, 0])).equal(ROWS[[2499, 0, 0]])


def test_rubbish_behind_the_commit_is_cut(tmp_path):
    filled(tmp_path, 600)
    before = content(tmp_path)
    for name in FILES[:3]:
        with open(tmp_path / name, "ab") as file:
            file.write(b"half a line")
    (tmp_path / ".spool.json.x1y2").write_bytes(b"{")
    assert_holds(Spool.resume(tmp_path), 600)
    assert content(tmp_path) == before


def test_a_log_line_without_its_manifest_does_not_count(tmp_path, monkeypatch):
    spool = Spool.resume(filled(tmp_path, 600))
    spool.append(ROWS[600:700], LABELS[600:700])

    def fails(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", fails)
        with pytest.raises(OSError, match="disk full"):
            spool.commit()
    assert (tmp_path / "commits.jsonl").read_text().count("\n") == 2
    spool.append(ROWS[700:750], LABELS[700:750])
    spool.commit()  # the same process tries again
    assert_holds(Spool.resume(tmp_path), 750)


def test_half_a_write_is_written_over(tmp_path):
    spool = Spool.resume(filled(tmp_path, 600))
    for name in FILES[:3]:  # the disk was full, and is not any more
        with open(tmp_path / name, "ab") as file:
            file.write(b"[1")
    spool.append(ROWS[600:700], LABELS[600:700])
    spool.commit()
    assert_holds(Spool.resume(tmp_path), 700)


def test_complete(tmp_path):
    spool = Spool(tmp_path)
    spool.append(ROWS[:5], LABELS[:5])
    spool.complete()
    with pytest.raises(InputError, match="complete: nothing can be appended"):
        spool.append(ROWS[:5], LABELS[:5])
    spool = Spool.resume(tmp_path)
    assert spool.exhausted
    assert_holds(spool, 5)


def test_commits_without_rows(tmp_path):
    spool = Spool(tmp_path)
    before = content(tmp_path)
    spool.commit()
    assert content(tmp_path) == before
    assert len(Spool.resume(tmp_path)) == 0
    spool.append(ROWS[:0], LABELS[:0])
    spool.commit()
    spool.append(ROWS[:9], LABELS[:9])
    assert len(Spool.resume(tmp_path)) == 0
    assert (tmp_path / "commits.jsonl").read_bytes() == b""


def test_the_manifest_stays_small(tmp_path):
    spool = Spool(tmp_path)
    for row in range(60):
        spool.append(ROWS[row : row + 1], LABELS[row : row + 1])
        spool.commit()
    assert (tmp_path / "spool.json").stat().st_size < 1000
    assert (tmp_path / "commits.jsonl").stat().st_size < 60 * 40
    assert_holds(Spool.resume(tmp_path), 60)


def test_rows_that_do_not_fit(tmp_path):
    spool = Spool(tmp_path)
    spool.append(ROWS[:5], LABELS[:5])
    for features, labels, error in [
        (ROWS[:2, :3], LABELS[:2], InputError),
        (ROWS[:2].double(), LABELS[:2], InputError),
        (ROWS[:2], LABELS[:3], LabelError),
    ]:
        with pytest.raises(error):
            spool.append(features, labels)
    assert_holds(spool, 5)


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_use_is_not_started_again(tmp_path, name):
    filled(tmp_path)
    for other in FILES:
        if other != name:
            (tmp_path / other).unlink()
    before = content(tmp_path)
    for start in (Spool, lambda folder: FeatureStore(durable=folder)):
        with pytest.raises(InputError, match=r"already: reopen it with Spool.resume"):
            start(tmp_path)
    assert content(tmp_path) == before


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def edited(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DAMAGE = {
    "a feature": ("features.bin", lambda p: flip(p, 600 * 128 + 5), "rows 600 to 1200"),
    "the last feature": ("features.bin", lambda p: flip(p, 1800 * 128 - 1), "rows 1200 to 1800"),
    "a label": ("labels.bin", lambda p: flip(p, 0), "rows 0 to 600"),
    "the log": ("commits.jsonl", lambda p: flip(p, 1), "sha256"),
    "features cut": ("features.bin", lambda p: os.truncate(p, 1800 * 128 - 1), "230399 bytes"),
    "labels cut": ("labels.bin", lambda p: os.truncate(p, 10), "10 bytes, 14400 were committed"),
    "log cut": ("commits.jsonl", lambda p: os.truncate(p, 3), "3 bytes"),
    "no features": ("features.bin", Path.unlink, "cannot be read: No such file"),
    "no labels": ("labels.bin", Path.unlink, "cannot be read: No such file"),
    "no log": ("commits.jsonl", Path.unlink, "cannot be read: No such file"),
    "no manifest": ("spool.json", Path.unlink, "holds no spool.json"),
    "half a manifest": ("spool.json", lambda p: os.truncate(p, 100), "is damaged"),
    "another manifest": ("spool.json", lambda p: p.write_text("[1]"), "not written by"),
    "another kind": ("spool.json", lambda p: edited(p, format="other"), "not written by"),
    "newer": ("spool.json", lambda p: edited(p, version=2), "has version 2, this package reads 1"),
    "rows": ("spool.json", lambda p: edited(p, rows=600), "does not have the sha256"),
    "complete": ("spool.json", lambda p: edited(p, complete=True), "does not have the sha256"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_told_and_nothing_is_changed(tmp_path, kind):
    name, damage, words = DAMAGE[kind]
    damage(filled(tmp_path) / name)
    before = content(tmp_path)
    for resume in (Spool.resume, FeatureStore.resume):
        with pytest.raises(FileFormatError, match=words) as error:
            resume(tmp_path)
        assert "delete it and fit again" in str(error.value)
        assert name in str(error.value)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_anywhere(tmp_path, name):
    path = filled(tmp_path, 1200) / name
    size, g = path.stat().st_size, torch.Generator().manual_seed(0)
    for position in torch.randint(size, (100,), generator=g).tolist():
        flip(path, position, position % 8)
        with pytest.raises(FileFormatError):
            Spool.resume(tmp_path)
        flip(path, position, position % 8)
    assert_holds(Spool.resume(tmp_path), 1200)


def test_a_folder_that_may_only_be_read(tmp_path):
    filled(tmp_path, 1200)
    for name in FILES:
        (tmp_path / name).chmod(0o400)
    assert_holds(Spool.resume(tmp_path), 1200)


def test_an_interrupted_store_hands_out_the_same_blocks(tmp_path):
    whole = FeatureStore.of(ROWS.repeat(30, 1), LABELS.repeat(30))
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
    for ours, theirs in zip(store.blocks(), whole.blocks(), strict=True):
        assert ours.start == theirs.start
        assert ours.features.equal(theirs.features.double())
        assert ours.labels.equal(theirs.labels)
