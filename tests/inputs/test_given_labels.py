"""Labels that are given next to a loader: in an order that is known, and not against its own."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import InputError, LabelError

N = 200
Y = torch.arange(N) % 4
X = 2 * torch.eye(8)[Y] + torch.randn(N, 8, generator=torch.Generator().manual_seed(0))
DATA, INPUTS = TensorDataset(X, Y), TensorDataset(X)


def inputs_alone(items: list[tuple[Tensor]]) -> Tensor:
    return torch.stack([item[0] for item in items])


class Backwards(Sampler[int]):
    def __init__(self) -> None:
        pass

    def __iter__(self):
        return iter(range(N - 1, -1, -1))

    def __len__(self) -> int:
        return N


class Wrapped:
    """A loader around another one, as libraries of training have."""

    def __init__(self, loader) -> None:
        self.inner = loader

    def __iter__(self):
        return iter(self.inner)


class Stream(IterableDataset):
    """Items that come one after the other."""

    def __iter__(self):
        return iter(zip(X, Y.tolist(), strict=True))


def shuffled() -> DataLoader:
    return DataLoader(INPUTS, 32, shuffle=True, collate_fn=inputs_alone)


def parts_of(loader):
    yield from loader


def second_of(first, second):
    """Held in an order that says nothing about which one is read."""
    yield from second


UNORDERED = {
    "shuffle": lambda: DataLoader(DATA, 32, shuffle=True),
    "without labels of its own": lambda: DataLoader(
        INPUTS, 32, shuffle=True, collate_fn=inputs_alone
    ),
    "weighted": lambda: DataLoader(DATA, 32, sampler=WeightedRandomSampler(torch.ones(N), N)),
    "subset": lambda: DataLoader(DATA, 32, sampler=SubsetRandomSampler(range(N))),
    "distributed": lambda: DataLoader(DATA, 32, sampler=DistributedSampler(DATA, 1, 0)),
    "a shard": lambda: DataLoader(DATA, 32, sampler=DistributedSampler(DATA, 2, 0, shuffle=False)),
    "batches": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 32, False)),
    "members of classes": lambda: DataLoader(DATA, 32, sampler=MPerClassSampler(Y, 8, 32, 192)),
    "a sampler of one's own": lambda: DataLoader(DATA, 32, sampler=Backwards()),
    "the last rows are left out": lambda: DataLoader(DATA, 32, drop_last=True),
    "an iterator": lambda: iter(shuffled()),
    "inputs alone": lambda: (x for x, _ in DataLoader(DATA, 32, shuffle=True)),
    "a generator": lambda: parts_of(shuffled()),
    "a map": lambda: map(Tensor.float, shuffled()),
    "a wrapper": lambda: Wrapped(shuffled()),
    "a wrapper of a wrapper": lambda: Wrapped(parts_of(shuffled())),
    "a stream of two workers": lambda: DataLoader(Stream(), 32, num_workers=2),
    "a bar": lambda: SimpleNamespace(iterable=DataLoader(DATA, 32, shuffle=True)),
}
ORDERED = {
    "plain": lambda: DataLoader(DATA, 32),
    "all rows are in whole batches": lambda: DataLoader(DATA, 50, drop_last=True),
    "one process": lambda: DataLoader(
        DATA, 32, sampler=DistributedSampler(DATA, 1, 0, shuffle=False)
    ),
    "a data set": lambda: DATA,
    "batches": lambda: [(X[:90], Y[:90]), (X[90:], Y[90:])],
    "a stream": lambda: DataLoader(Stream(), 32),
    "a generator": lambda: (x for x, _ in DataLoader(DATA, 32)),
    "an iterator": lambda: iter(DataLoader(DATA, 32)),
    "a wrapper": lambda: Wrapped(DataLoader(DATA, 32)),
    "the second of two loaders": lambda: second_of(shuffled(), DataLoader(DATA, 32)),
    "sequential": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 7, False)
    ),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture(scope="module")
def embedder() -> LaplaceEmbedder:
    return LaplaceEmbedder(network()).fit(X, Y, progress=False)


def guarded(embedder, items, labels, held_out):
    options = {"trained_on_items": False, "precision": 0.3}
    return Guard(items, labels, model=embedder, held_out=held_out, **options)


DOORS = {
    "fit": lambda e, data, y: LaplaceEmbedder(network()).fit(data, y, progress=False),
    "index": lambda e, data, y: e.index(data, y, progress=False),
    "cross_index": lambda e, data, y: e.cross_index(data, y, progress=False),
    "add": lambda e, data, y: e.index(X, Y, progress=False).add(data, y, ids=range(N, 2 * N)),
    "calibrate": lambda e, data, y: e.index(X, Y, progress=False).calibrate(data, y),
    "evaluate": lambda e, data, y: e.index(X, Y, progress=False).evaluate(data, y),
    "evidence": lambda e, data, y: e.log_marginal_likelihood(data, y),
    "Guard": lambda e, data, y: guarded(e, data, y, None),
    "held_out": lambda e, data, y: guarded(e, X, Y, (data, y)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
def test_labels_are_those_of_the_rows_at_every_door(door, embedder):
    ask = DOORS[door]
    with pytest.raises(InputError, match=r"rows at random.*\(RandomSampler\)"):
        ask(embedder, DataLoader(DATA, 32, shuffle=True), Y)
    with pytest.raises(LabelError, match=r"labels is 0.*row 32.*label 3; .*32 rows"):
        ask(embedder, DataLoader(TensorDataset(X, torch.cat([Y[:32], 3 - Y[32:]])), 32), Y)
    ask(embedder, DataLoader(DATA, 32), Y)


@pytest.mark.parametrize("kind", UNORDERED)
def test_a_loader_in_an_order_of_its_own_takes_no_labels_next_to_it(kind, embedder):
    loader = UNORDERED[kind]()
    before = torch.get_rng_state()
    with pytest.raises(InputError, match=r"a loader that .*entries of labels="):
        embedder.index(loader, Y, progress=False)
    if not isinstance(loader, Iterator):  # whose first batch is looked at
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ORDERED)
def test_a_loader_in_the_order_of_its_data_takes_the_labels_that_it_has(kind, embedder):
    labels = Y if kind != "batches" else [f"class {y}" for y in Y.tolist()]
    assert embedder.index(ORDERED[kind](), labels, progress=False).labels.tolist() == list(labels)


def test_a_loader_that_shuffles_labels_of_its_own_is_read(embedder):
    index = embedder.index(DataLoader(DATA, 32, shuffle=True), progress=False)
    assert index.labels.tolist() != Y.tolist()


def test_names_of_the_classes_of_a_loader_stand_for_one_class_each(embedder):
    names = [f"class {y}" for y in Y.tolist()]
    assert embedder.index(DATA, names, progress=False).labels.tolist() == names
    names[40] = "class 1"  # of class 0
    with pytest.raises(LabelError, match="labels.*'class 1'.*row 40, .*label 0"):
        embedder.index(DATA, names, progress=False)
    names[40] = "another"
    with pytest.raises(LabelError, match="labels.*'another'.*row 40, .*label 0"):
        embedder.index(DATA, names, progress=False)


def test_too_few_labels_are_still_counted(embedder):
    with pytest.raises(InputError, match="labels has 100.*200 items"):
        embedder.index(DATA, Y[:100], progress=False)


def matching(embedder, data, matches):
    return embedder.index(X, progress=False).calibrate(data, matches=matches)


COLUMNS = {
    "ids of an index": ("ids", lambda e, data, x: e.index(data, ids=x, progress=False)),
    "ids that are added": (
        "ids",
        lambda e, data, x: e.index(X, Y, progress=False).add(data, ids=x),
    ),
    "ids of its own": ("ids", lambda e, data, x: e.cross_index(data, ids=x, progress=False)),
    "groups of items": ("groups", lambda e, data, x: e.cross_index(data, groups=x, progress=False)),
    "groups": ("groups", lambda e, data, x: e.index(X, Y).calibrate(data, groups=x)),
    "groups of held_out": (
        "groups",
        lambda e, data, x: Guard(X, Y, model=e, held_out=(data, None), groups=x, precision=0.3),
    ),
    "matches": ("matches", matching),
    "matches of a test": (
        "matches",
        lambda e, data, x: e.index(X, progress=False).evaluate(data, matches=x),
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", COLUMNS)
def test_other_columns_are_in_the_order_of_the_loader_too(door, embedder):
    name, ask = COLUMNS[door]
    column = [[row] for row in range(N)] if name == "matches" else range(N, 2 * N)
    data = DATA if name != "matches" else INPUTS
    loader = [DataLoader(data, 32, shuffle=shuffle) for shuffle in (True, False)]
    told = f"entries of {name}= are not those of its rows: read all of it in its own order"
    with pytest.raises(InputError, match=told):
        ask(embedder, loader[0], column)
    ask(embedder, loader[1] if name != "matches" else X, column)


FRAME = pd.DataFrame(X.numpy()).sample(frac=1, random_state=0)
SERIES = pd.Series(Y.numpy())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
def test_a_series_whose_index_has_another_order_is_refused(door, embedder):
    with pytest.raises(LabelError, match=r"two orders.*row 0.*0 in.*labels"):
        DOORS[door](embedder, FRAME, SERIES)
    DOORS[door](embedder, FRAME, SERIES.loc[FRAME.index])


def test_a_guard_of_vectors_compares_the_index_too():
    with pytest.raises(LabelError, match=r"Pass labels.loc\[items.index\]"):
        Guard(FRAME, SERIES, precision=0.3)
    Guard(FRAME, SERIES.loc[FRAME.index], precision=0.3)


def test_labels_without_the_index_of_the_rows_are_those_of_the_rows(embedder):
    labels = SERIES.loc[FRAME.index]
    for given in (labels.to_numpy(), labels.add_prefix("row ")):
        index = embedder.index(FRAME, given, progress=False)
        assert index.labels.tolist() == labels.tolist()
    mixed = pd.Series(Y.numpy(), index=["a", *range(1, N)])
    assert embedder.index(FRAME, mixed, progress=False).labels.tolist() == Y.tolist()
    assert embedder.index(FRAME.to_numpy(), SERIES, progress=False).labels.tolist() == Y.tolist()
