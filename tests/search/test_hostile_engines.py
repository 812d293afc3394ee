"""Approximate indexes whose files are hostile, with hashes that match."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from laplace_metric.errors import FileFormatError
from laplace_metric.search import HNSW, IVF, Index
from tests.saved_files import rewrite

KINDS = {"ivf": IVF(lists=4, probes=4), "hnsw": HNSW(links=3, ef=300)}


def test_hostile_files_are_refused_or_searched(tmp_path):
    """In a process of its own: FAISS would end it."""
    last = tmp_path / "last"
    command = [sys.executable, "-m", "tests.search.hostile_engines", "--files", "60"]
    done = subprocess.run(
        [*command, "--last", str(last)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{last.read_text()}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert outcomes["refused"] > 60
    assert outcomes["answered"] > 0
    assert sum(outcomes.values()) == 120


@pytest.fixture
def save(points, embedder, tmp_path):
    """Save an index of 200 items with some arrays changed, in a file whose hashes match."""

    def save(name, change):
        made = embedder.index(points[0][:200], engine=KINDS[name], progress=False)
        made.save(tmp_path / "index")
        rewrite(tmp_path / "index", "index", lambda _, arrays: change(arrays))
        return made

    return save


def put(name, place, value):
    def change(tensors):
        tensors[f"engine.{name}"].view(-1)[place] = value

    return change


def link_above(tensors):
    """An item at level 0 only becomes a neighbour at level 1: it has no slots there."""
    levels = tensors["engine.levels"]
    high = int((levels > 1).nonzero()[0])
    begin = 3 * int((levels[:high] + 1).sum())
    tensors["engine.neighbours"][begin + 6] = int((levels == 1).nonzero()[0])


def low_entry(tensors):
    tensors["engine.entry"][0] = int((tensors["engine.levels"] == 1).nonzero()[0])


def negative_entry(tensors):
    tensors["engine.entry"] -= len(tensors["engine.levels"])  # NumPy takes it for the same item


def sizes_with_a_right_sum(tensors):
    sizes = tensors["engine.sizes"]
    sizes[1] += sizes[0] + 1
    sizes[0] = -1


def twice(tensors):
    """One key twice, another never; the vectors are those of the keys."""
    words, d = tensors["engine.lists"], tensors["mean"].shape[1]
    n = int(tensors["engine.sizes"][0])
    flat = words[:n].view(-1)
    flat[:d], flat[n * d : n * d + 2] = flat[d : 2 * d].clone(), flat[n * d + 2 : n * d + 4].clone()


@pytest.mark.parametrize(
    ("name", "array", "change"),
    [
        ("hnsw", "neighbours", put("neighbours", 0, 200)),
        ("hnsw", "neighbours", put("neighbours", 0, -2)),
        ("hnsw", "neighbours", link_above),
        ("hnsw", "levels", put("levels", 0, 99)),
        ("hnsw", "levels", put("levels", 0, 0)),
        ("hnsw", "entry", put("entry", 0, -1)),
        ("hnsw", "entry", put("entry", 0, 200)),
        ("hnsw", "entry", low_entry),
        ("hnsw", "entry", negative_entry),
        ("hnsw", "keys", put("keys", 199, 200)),
        ("ivf", "sizes", put("sizes", slice(0, 2), torch.tensor([-1, 2**62]))),
        ("ivf", "sizes", sizes_with_a_right_sum),
        ("ivf", "sizes", put("sizes", slice(0, 4), 2**62 + torch.tensor([200, 0, 0, 0]))),
        ("ivf", "sizes", put("sizes", 0, 0)),
        ("ivf", "centroids", put("centroids", 0, torch.nan)),
        ("ivf", "keys", put("keys", 0, -1)),
        ("ivf", "keys", put("keys", 199, 2**62)),
        ("ivf", "keys", put("keys", 1, 0)),
        ("ivf", "lists", twice),
        ("ivf", "lists", put("lists", 0, 0)),
        ("ivf", "centroids", lambda t: t.update({"engine.centroids": torch.zeros(4, 9)})),
        ("ivf", "lists", lambda t: t.pop("engine.lists")),
    ],
)
def test_arrays_that_do_not_fit_are_named(name, array, change, save, embedder, tmp_path):
    save(name, change)
    with pytest.raises(FileFormatError) as caught:
        Index.load(tmp_path / "index", embedder)
    assert str(tmp_path / "index") in str(caught.value)
    assert array in str(caught.value)
    assert "again and save it" in str(caught.value)


def test_lists_that_are_mapped_are_checked_when_they_are_searched(save, points, embedder, tmp_path):
    save("ivf", lambda tensors: tensors["engine.lists"].fill_(2**30))
    index = Index.load(tmp_path / "index", embedder, mmap=True)
    with pytest.raises(FileFormatError, match=r"damaged: its lists"):
        index.search(points[0][:3], k=5)


def test_embeddings_of_another_width_are_refused(save, points, embedder, tmp_path):
    def wider(tensors):
        tensors["mean"] = torch.cat([tensors["mean"], tensors["mean"]], 1)
        tensors["engine.lists"] = torch.zeros(200, tensors["mean"].shape[1] + 2, dtype=torch.int32)
        tensors["engine.centroids"] = torch.zeros(4, tensors["mean"].shape[1])

    save("ivf", wider)
    index = Index.load(tmp_path / "index", embedder, mmap=True)
    with pytest.raises(FileFormatError, match="12 numbers.*model gives 6"):
        index.search(points[0][:3], k=5)


def test_more_candidates_than_items_reserve_no_memory(points, embedder):
    made = embedder.index(points[0][:50], engine=HNSW(ef=2**31 - 1), progress=False)
    assert made.engine.index.hnsw.efSearch == 50
    made.search(points[0][:3], k=5)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rank_by", ["mean", "expected"])
def test_the_arrays_are_what_faiss_keeps(name, rank_by, points, embedder):
    """The oracle is FAISS's own file, byte for byte."""
    faiss = pytest.importorskip("faiss")
    x, y = points
    made = embedder.index(x[:300], y[:300], engine=KINDS[name], rank_by=rank_by, progress=False)
    made.remove([7, 299])
    made.add(x[300:310], y[300:310])
    engine = made.engine
    again = engine.restored(engine.arrays(), engine.vectors, engine.kind)
    ours, theirs = (faiss.serialize_index(e.index) for e in (again, engine))
    assert np.array_equal(ours, theirs)
