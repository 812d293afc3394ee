"""What needs a process of its own: resident memory, the end of the interpreter.

``tests/damage`` kills the writers of features.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and getrusage")

FLAT = """
import os, resource, sys, torch
from laplace_metric.models._feature_store import FeatureStore

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin"
                                                                  else 2**10)

def spilled_and_read(store):  # 400 MiB, twice
    total, batch, labels = 0.0, torch.rand(2048, 512), torch.arange(2048)
    for number in range(100):
        batch[0, 0] = number
        store.append(batch.clone(), labels, where=f"batch {number}")
        if number % 25 == 24:
            store.commit()
    for _ in range(2):
        for block in store.blocks():
            total += float(block.features[0, 0]) + float(block.labels[0])
    store.rows(torch.randint(len(store), (1000,)))
    assert total == 2 * sum(range(100)) and len(store) == 204800
    store.close()

baseline, folder = peak(), sys.argv[1]
spilled_and_read(FeatureStore(8 * 2**20, folder))
spilled_and_read(FeatureStore(durable=folder + "/durable"))
FeatureStore(durable=folder + "/durable").close()
print(peak() - baseline)

left_open = FeatureStore(0, folder)
left_open.append(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64), where="batch")
assert next(left_open.blocks()).features.sum() == 8 and len(os.listdir(folder)) == 2
sys.exit(3)
"""


def test_flat_memory_and_nothing_left_behind(tmp_path: Path):
    command = [sys.executable, "-c", FLAT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert float(done.stdout) < 40
    assert [path.name for path in tmp_path.iterdir()] == ["durable"]
