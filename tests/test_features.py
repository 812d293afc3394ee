from __future__ import annotations

from pathlib import Path

import pytest
import torch

from laplace_metric.errors import InputError, LabelError, NonFiniteError
from laplace_metric.features import FeatureStore

ROWS = torch.randn(300, 7, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(300) % 4


def filled(tmp_path: Path, memory_bytes: int, dtype=torch.float32) -> FeatureStore:
    store = FeatureStore(memory_bytes, str(tmp_path))
    for start in range(0, 300, 77):
        part = slice(start, start + 77)
        store.append(ROWS[part].to(dtype), LABELS[part], where=f"batch {start}")
    return store


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("memory_bytes", [0, 3000, 10**9])
def test_same_rows_from_memory_and_from_disk(tmp_path, memory_bytes, dtype):
    with filled(tmp_path, memory_bytes, dtype) as store:
        assert store.spilled == (memory_bytes < 10**9)
        assert bool(list(tmp_path.iterdir())) == store.spilled
        index = torch.tensor([299, 0, 0, 150])
        assert torch.equal(store.rows(index), ROWS[index].to(dtype))
        assert torch.equal(torch.cat([block for _, block in store.blocks()]), ROWS.to(dtype))
        assert torch.equal(store.labels, LABELS)
    assert not list(tmp_path.iterdir())  # the temporary file is gone


def test_half_precision_is_kept_as_float32():
    store = FeatureStore()
    store.append(ROWS.bfloat16(), LABELS, where="batch")
    assert store.rows(torch.tensor([0])).dtype == torch.float32


def test_bad_rows():
    with pytest.raises(NonFiniteError, match="batch 3 holds NaN or infinity in 1 of 2 rows"):
        FeatureStore().append(torch.tensor([[1.0], [torch.nan]]), LABELS[:2], where="batch 3")
    with pytest.raises(NonFiniteError, match=r"features\[0:2\]"):
        FeatureStore.of(torch.tensor([[1.0], [-torch.inf]]), LABELS[:2])
    with pytest.raises(LabelError, match="2 rows but 3 labels"):
        FeatureStore.of(torch.ones(2, 1), LABELS[:3])
    with pytest.raises(InputError, match="int64"):
        FeatureStore.of(torch.ones(2, 1, dtype=torch.int64), LABELS[:2])
    store = FeatureStore()
    store.append(torch.ones(1, 2), LABELS[:1], where="batch 0")
    with pytest.raises(InputError, match="batch 1 has 3 features, earlier ones 2"):
        store.append(torch.ones(1, 3), LABELS[:1], where="batch 1")
