"""Labels that are given next to a loader: in an order that is known, and not against its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
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
    with pytest.raises(InputError, match=r"draws its rows at random \(RandomSampler\), so that"):
        ask(embedder, DataLoader(DATA, 32, shuffle=True), Y)
    with pytest.raises(LabelError, match=r"labels is 0 in row 32, where .* label 3; .*32 rows fr"):
        ask(embedder, DataLoader(TensorDataset(X, torch.cat([Y[:32], 3 - Y[32:]])), 32), Y)
    ask(embedder, DataLoader(DATA, 32), Y)


@pytest.mark.parametrize("kind", UNORDERED)
def test_a_loader_in_an_order_of_its_own_takes_no_labels_next_to_it(kind, embedder):
    before = torch.get_rng_state()
    with pytest.raises(InputError, match=r"a loader that .* so that the entries of labels= are"):
        embedder.index(UNORDERED[kind](), Y, progress=False)
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
    with pytest.raises(LabelError, match="labels is 'class 1' in row 40, .* label 0"):
        embedder.index(DATA, names, progress=False)
    names[40] = "another"
    with pytest.raises(LabelError, match="labels is 'another' in row 40, .* label 0"):
        embedder.index(DATA, names, progress=False)


def test_too_few_labels_are_still_counted(embedder):
    with pytest.raises(InputError, match="labels has 100 entries for 200 items"):
        embedder.index(DATA, Y[:100], progress=False)


@pytest.mark.parametrize("name", ["ids", "groups"])
def test_other_columns_are_in_the_order_of_the_loader_too(name, embedder):
    with pytest.raises(InputError, match=f"entries of {name}= are not those of its rows"):
        embedder.cross_index(DataLoader(DATA, 32, shuffle=True), **{name: range(N)})
