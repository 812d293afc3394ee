"""A FAISS index that goes on running while a guard answers by it: what changes is noticed."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from laplace_metric import Guard
from laplace_metric.errors import InputError
from laplace_metric.search.engines._running_faiss import RunningFaiss, parameters_of

faiss = pytest.importorskip("faiss")
X, Y = load_digits(return_X_y=True)
X = X.astype(np.float32)
N = 600


def running(kind, d=64):
    index = faiss.index_factory(d, kind)
    index.train(X[:N, :d])
    index.add_with_ids(X[:N, :d], np.arange(N)) if "IDMap" in kind else index.add(X[:N, :d])
    return index


def inner(index, place):
    """What is at a place such as "index.quantizer" of an index."""
    for name in filter(None, place.split(".")):
        index = getattr(index, name)
        index = faiss.downcast_index(index) if isinstance(index, faiss.Index) else index
    return index


CHANGES = [
    ("IVF16,Flat", "", "nprobe", 3),
    ("IVF16,Flat", "", "max_codes", 50),
    ("HNSW16", "hnsw", "efSearch", 3),
    ("HNSW16", "hnsw", "check_relative_distance", False),
    ("IVF16_HNSW8,Flat", "quantizer.hnsw", "efSearch", 2),
    ("IDMap,IVF16,Flat", "index", "nprobe", 3),
    ("IDMap2,HNSW16", "index.hnsw", "efSearch", 3),
    ("PCA16,IVF16,Flat", "index", "nprobe", 3),
    ("IVF16,PQ16x4,RFlat", "", "k_factor", 3.0),
    ("IVF16,PQ16x4,RFlat", "base_index", "nprobe", 3),
    ("PQ16x4", "", "polysemous_ht", 3),
    ("IVF16,PQ16x4", "", "polysemous_ht", 3),
    ("NSG8", "nsg", "search_L", 3),
]


@pytest.mark.parametrize(("kind", "place", "name", "value"), CHANGES)
def test_each_parameter_that_changes_an_answer_is_compared(kind, place, name, value):
    index = running(kind)
    search = RunningFaiss(index, np.arange(N))
    found = search(X[:5], 3)
    assert found.tolist() == index.search(X[:5], 3)[1].tolist()
    part, dot = inner(index, place), "." if place else ""
    before = getattr(part, name)
    setattr(part, name, value)
    told = rf"has {place}{dot}{name}={value}, and had {place}{dot}{name}={before} when it"
    with pytest.raises(InputError, match=told):
        search(X[:5], 3)
    setattr(part, name, before)
    assert search(X[:5], 3).tolist() == found.tolist()


def test_another_quantizer_and_vectors_in_one_part_are_noticed():
    index = running("IVF16,PQ16x4,RFlat")
    search = RunningFaiss(index, np.arange(N))
    faiss.downcast_index(index.refine_index).add(X[:1])
    with pytest.raises(InputError, match=r"refine_index\.ntotal=601, and had"):
        search(X[:5], 3)
    lists = running("IVF16,Flat")
    search = RunningFaiss(lists, np.arange(N))
    other = faiss.IndexHNSWFlat(64, 8)
    other.add(faiss.downcast_index(lists.quantizer).reconstruct_n(0, 16))
    kept, lists.own_fields, lists.quantizer = lists.quantizer, False, other
    with pytest.raises(
        InputError, match=r"quantizer\.type=IndexHNSWFlat, and had .*type=IndexFlat"
    ):
        search(X[:5], 3)
    assert kept.ntotal == 16


def test_shards_are_looked_into():
    shards = faiss.IndexShards(64, False, False)
    parts = [running("IVF16,Flat"), running("IVF16,Flat")]
    for part in parts:
        shards.add_shard(part)
    before = parameters_of(shards)
    parts[1].nprobe = 5
    changed = {name for name, value in parameters_of(shards).items() if before[name] != value}
    assert changed == {"at(1).nprobe"}


def test_a_search_changes_no_parameter():
    for kind, *_ in CHANGES:
        index = running(kind)
        before = parameters_of(index)
        index.search(X[:50], 20)
        assert parameters_of(index) == before


@pytest.mark.parametrize(
    ("kind", "place", "name"),
    [
        ("IVF16,Flat", "", "nprobe"),
        *[("HNSW16", "hnsw", "efSearch"), ("IDMap,IVF16,Flat", "index", "nprobe")],
    ],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_guard_refuses_an_index_that_searches_otherwise(kind, place, name, wrapped, tmp_path):
    index = running(kind)
    part = inner(index, place)
    setattr(part, name, 16)
    if wrapped:
        guard = Guard.wrap(index, Y[:N], precision=0.8)
    else:
        guard = Guard(X[:N], Y[:N], search=index, precision=0.8)
    setattr(part, name, 2)
    with pytest.raises(InputError, match=rf"{name}=2, and had .*{name}=16.*Put .*{name}=16 back"):
        guard.ask(X[N : N + 5])
    setattr(part, name, 16)
    assert len(guard.ask(X[N : N + 5])) == 5


def put_back(index):
    index.remove_ids(np.array([300]))
    index.add(X[300:301])


def filled_again(index):
    index.reset()
    index.add(X[N : 2 * N])


@pytest.mark.parametrize("kind", ["Flat", "SQ8", "PCA16,Flat", "IVF16,Flat"])
@pytest.mark.parametrize("change", [put_back, filled_again])
def test_rows_that_moved_are_refused_at_the_next_query(kind, change):
    index = running(kind)
    guard = Guard.wrap(index, Y[:N], vectors=X[:N], precision=0.8)
    assert len(guard.ask(X[N : N + 1])) == 1
    change(index)
    if kind.startswith("IVF") and change is put_back:  # its rows do not move, but two have one id
        with pytest.raises(InputError, match=r"more than once.*\[599\] among"):
            Guard.wrap(index, Y[:N], vectors=X[:N])
        return
    with pytest.raises(InputError, match="no longer.*vector.*row 599 .*Guard it"):
        guard.ask(X[N : N + 1])


@pytest.mark.parametrize("kind", ["IDMap,Flat", "IDMap2,Flat"])
def test_ids_may_change_their_row_and_not_their_vector(kind):
    index = running(kind)
    guard = Guard.wrap(index, Y[:N], vectors=X[:N], precision=0.8)
    before = guard.ask(X[N : 2 * N]).label.tolist()
    for vector, fits in ((X[599:600], True), (X[600:601], False)):
        index.remove_ids(np.array([599]))
        index.add_with_ids(vector, np.array([599]))
        if fits:
            assert guard.ask(X[N : 2 * N]).label.tolist() == before
        else:
            with pytest.raises(InputError, match="vector that.*id 599"):
                guard.ask(X[:1])


def test_each_of_200_rows_is_looked_at_in_turn():
    index = running("IDMap2,Flat")
    search = RunningFaiss(index, np.arange(N))
    index.remove_ids(np.array([0]))
    index.add_with_ids(X[N : N + 1], np.array([0]))
    for asked in range(1, 200):
        assert len(search(X[:1], 3)) == 1, asked
    with pytest.raises(InputError, match="vector.*id 0 when"):
        search(X[:1], 3)


@pytest.mark.parametrize(
    "guarded",
    [
        lambda index: Guard.wrap(index, Y[:N]),
        lambda index: Guard(X[:N], Y[:N], search=index),
    ],
)
def test_ids_that_stand_twice_are_named(guarded):
    index = running("IVF16,Flat")
    index.remove_ids(np.arange(50))
    index.add(X[:50])
    with pytest.raises(InputError, match=r"more than once.*\[550, 551, 552\]"):
        guarded(index)
