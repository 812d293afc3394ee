from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from laplace_metric._utils.blocks import CACHE_BYTES, block_rows
from laplace_metric.errors import FileFormatError, InputError, LabelError, NonFiniteError
from laplace_metric.models import _feature_checks
from laplace_metric.models._feature_store import FeatureStore

WIDTH = 512
STEP = block_rows(WIDTH * 4, CACHE_BYTES)
N = 2 * STEP + 77
ROWS = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) % 7
KINDS = ["memory", "spilled late", "durable"]


def store_of(kind: str, folder: Path, **options) -> FeatureStore:
    if kind == "durable":
        return FeatureStore(durable=folder / "durable", **options)
    memory_bytes = {"memory": 10**9, "spilled late": ROWS.nbytes // 2}[kind]
    return FeatureStore(memory_bytes, str(folder), **options)


def fill(store: FeatureStore, dtype=torch.float32, size: int = 301) -> FeatureStore:
    for start in range(0, N, size):
        part = slice(start, start + size)
        store.append(ROWS[part].to(dtype), LABELS[part], where=f"batch {start}")
    return store


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_same_rows_wherever_they_are_kept(tmp_path, kind, dtype):
    with fill(store_of(kind, tmp_path), dtype) as store:
        assert bool(list(tmp_path.iterdir())) == (kind != "memory")
        assert (len(store), store.nbytes) == (N, ROWS.to(dtype).nbytes)
        blocks = list(store.blocks())
        assert torch.equal(torch.cat([b.features for b in blocks]), ROWS.to(dtype))
        assert torch.equal(torch.cat([b.labels for b in blocks]), LABELS)
        assert torch.equal(store.labels, LABELS)
        assert torch.equal(store.classes, torch.arange(7))
        step = block_rows(WIDTH * dtype.itemsize, CACHE_BYTES)
        assert [b.start for b in blocks] == list(range(0, N, step))
        assert blocks[-1].stop == N
    assert bool(list(tmp_path.iterdir())) == (kind == "durable")  # temporary files are gone


@pytest.mark.parametrize("kind", KINDS)
def test_rows_at_any_index(tmp_path, kind):
    source = fill(store_of(kind, tmp_path))
    g = torch.Generator().manual_seed(1)
    indices = [
        torch.tensor([N - 1, 0, 0, 150, 151, 152, 3]),
        torch.arange(N),
        torch.arange(N).flip(0),
        torch.arange(5, N, 3),
        torch.randint(N, (4000,), generator=g),
        torch.empty(0, dtype=torch.int64),
    ]
    for index in indices:
        assert torch.equal(source.rows(index), ROWS[index])


@pytest.mark.parametrize("kind", ["spilled late", "durable"])
@pytest.mark.parametrize("damage", [lambda p: os.truncate(p, 5000), Path.unlink])
def test_a_file_that_is_cut_while_it_is_read(tmp_path, kind, damage):
    store = fill(store_of(kind, tmp_path), torch.float64)
    damage(next(tmp_path.rglob("features.bin")))
    with pytest.raises(FileFormatError, match=r"bin (ends early|cannot be read)"):
        list(store.blocks())


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batches_and_empty_stores(tmp_path, kind):
    store = store_of(kind, tmp_path)
    assert (len(store), store.nbytes, list(store.blocks()), len(store.labels)) == (0, 0, [], 0)
    with pytest.raises(InputError, match="no features.*appended"):
        store.rows(torch.tensor([0]))
    nothing = slice(0, 0)
    for part in (nothing, slice(0, 5), nothing, slice(5, 9), nothing):
        store.append(ROWS[part], LABELS[part], where="batch")
    assert torch.equal(store.rows(torch.arange(9)), ROWS[:9])
    assert len(store.labels) == 9


@pytest.mark.parametrize("kind", KINDS)
def test_reading_and_appending_in_turns(tmp_path, kind):
    store = store_of(kind, tmp_path)
    for start in range(0, N, 700):
        part = slice(start, start + 700)
        store.append(ROWS[part], LABELS[part], where="batch")
        assert torch.equal(torch.cat([b.features for b in store.blocks()]), ROWS[: part.stop])
        assert torch.equal(store.labels, LABELS[: part.stop])


@pytest.mark.parametrize("kind", KINDS)
def test_type_of_what_is_handed_out(tmp_path, kind):
    store = fill(store_of(kind, tmp_path, dtype=torch.float64))
    assert [b.start for b in store.blocks()] == [0, STEP, 2 * STEP]  # boundaries as stored
    assert torch.equal(torch.cat([b.features for b in store.blocks()]), ROWS.double())
    store = FeatureStore()
    store.append(ROWS.bfloat16(), LABELS, where="batch")
    assert store.rows(torch.tensor([0])).dtype == torch.float32
    assert FeatureStore.of(ROWS, LABELS, dtype=torch.bfloat16).rows(LABELS).dtype == torch.bfloat16


def test_a_store_around_tensors_copies_nothing():
    store = FeatureStore.of(ROWS, LABELS)
    assert next(store.blocks()).features.data_ptr() == ROWS.data_ptr()
    assert store.labels.data_ptr() == LABELS.data_ptr()


def test_an_exception_removes_the_temporary_files(tmp_path):
    def interrupted():
        with fill(store):
            assert list(tmp_path.iterdir())
            raise KeyError

    store = store_of("spilled late", tmp_path)
    with pytest.raises(KeyError):
        interrupted()
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="closed"):
        list(store.blocks())


def test_bad_rows():
    with pytest.raises(NonFiniteError, match=r"batch 3.*NaN.*row 1.*1 of 2"):
        FeatureStore().append(torch.tensor([[1.0], [torch.nan]]), LABELS[:2], where="batch 3")
    with pytest.raises(NonFiniteError, match=r"features\[0:2\]"):
        FeatureStore.of(torch.tensor([[1.0], [-torch.inf]]), LABELS[:2])
    with pytest.raises(LabelError, match="2 rows.*3 labels"):
        FeatureStore.of(torch.ones(2, 1), LABELS[:3])
    with pytest.raises(InputError, match="int64"):
        FeatureStore.of(torch.ones(2, 1, dtype=torch.int64), LABELS[:2])


def test_batches_that_differ_from_earlier_ones():
    store = FeatureStore()
    store.append(torch.ones(1, 2), LABELS[:1], where="batch 0")
    with pytest.raises(InputError, match=r"batch 1.*features .*\(1, 3\), earlier"):
        store.append(torch.ones(1, 3), LABELS[:1], where="batch 1")
    with pytest.raises(InputError, match=r"batch 1.*features torch.float64 .*torch.float32"):
        store.append(torch.ones(1, 2).double(), LABELS[:1], where="batch 1")
    assert len(store) == 1


BATCHES = [torch.ones(4, 2), torch.full((4, 2), torch.inf), torch.tensor([[torch.nan, 0.0]] * 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_checks_of_an_accelerator_come_with_the_next_reading(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(_feature_checks, "_later", lambda device: True)
    store = store_of(kind, tmp_path)
    for number, batch in enumerate(BATCHES):
        store.append(batch, LABELS[:4], where=f"batch {number}")
    reads = [store.commit, lambda: list(store.blocks()), lambda: store.labels]
    for read in [*reads, lambda: store.rows(LABELS[:1]), store.complete]:  # again and again
        said = r"batch 1 \(rows 0 to 3\) holds NaN or infinity: check"
        with pytest.raises(NonFiniteError, match=said):
            read()
    store.close()
    if kind == "durable":
        assert len(FeatureStore(durable=tmp_path / "durable")) == 0  # a bad row is never committed


def test_outstanding_checks_are_few(monkeypatch):
    monkeypatch.setattr(_feature_checks, "_later", lambda device: True)
    monkeypatch.setattr(_feature_checks, "CHECKS_AT_ONCE", 3)
    pending = _feature_checks.FiniteChecks()
    for number in range(7):
        pending.add(BATCHES[0], where=f"batch {number}")
    assert len(pending.pending) == 1
    pending.add(BATCHES[1], where="batch 7")
    with pytest.raises(NonFiniteError, match="batch 7"):
        pending.add(BATCHES[0], where="batch 8")
