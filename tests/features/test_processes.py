"""What needs a process of its own: resident memory, kill -9, the end of the interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and getrusage")

FLAT = """
import os, resource, sys, torch
from laplace_metric.models._store import FeatureStore

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

KILLED = """
import os, random, signal, sys, torch
from laplace_metric.models._disk import DiskRows

folder = sys.argv[1]
rows = torch.randn(60_000, 64, generator=torch.Generator().manual_seed(0))
labels = torch.arange(60_000) % 13

def work(tell, size):
    store = DiskRows(folder)
    while len(store) < 60_000:
        for _ in range(random.randint(0, 3)):
            part = slice(len(store), min(60_000, len(store) + random.randint(0, size)))
            store.append(rows[part], labels[part])
        store.commit()
        os.write(tell, len(store).to_bytes(4, "big"))
    store.complete()

def child(prepare, size):
    ours, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        prepare()
        try:
            work(tell, size)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    os.close(tell)
    return pid, ours

def check(ours):
    committed = os.read(ours, 2**20)
    os.close(ours)
    least = int.from_bytes(committed[-4:], "big")
    if not os.path.exists(folder + "/features.json"):
        assert not committed
        return 0, False
    store = DiskRows(folder)
    n = len(store)
    features, classes = (store.read(c, 0, n) if n else (rows, labels)[c][:0] for c in (0, 1))
    assert n >= least, (n, least)
    assert torch.equal(features, rows[:n]) and torch.equal(classes, labels[:n])
    names = {"features.json", "features.bin", "labels.bin"}
    assert {name for name in os.listdir(folder) if "-" not in name} <= names
    assert len(os.listdir(folder)) <= 4 and not [n for n in os.listdir(folder) if n[0] == "."]
    return n, store.exhausted

def die_at(call):  # just before or just after the call-th step that reaches the disk
    def prepare():
        left = [call]
        def dying(function):
            def step(*arguments):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                function(*arguments)
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return step
        os.fsync, os.replace, os.unlink = map(dying, (os.fsync, os.replace, os.unlink))
    return prepare

random.seed(1)
before = 0
for call in range(1, 31):
    random.seed(call)
    pid, ours = child(die_at(call), 20)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    n, _ = check(ours)
    assert n >= before
    before = n
pid, ours = child(lambda: None, 5000)
assert os.waitpid(pid, 0)[1] == 0
assert check(ours) == (60_000, True)
print(before)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_flat_memory_and_nothing_left_behind(tmp_path: Path):
    done = run(FLAT, str(tmp_path))
    assert done.returncode == 3, done.stderr
    assert float(done.stdout) < 40
    assert [path.name for path in tmp_path.iterdir()] == ["durable"]


def test_killed_at_any_moment(tmp_path):
    done = run(KILLED, str(tmp_path / "durable"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 0
