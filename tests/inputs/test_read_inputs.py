"""The one door of what users pass: each kind of data becomes the same batches, read once."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import laplace_metric
from laplace_metric import Guard, LaplaceEmbedder, OnlineLaplace
from laplace_metric.errors import InputError, LabelError, NonFiniteError
from laplace_metric.inputs import (
    Inputs,
    read_batch,
    read_inputs,
    read_items,
    read_loader,
    read_vectors,
)
from laplace_metric.training import train_embedder
from tests.habits.test_texts import Words, texts

X = torch.arange(1200, dtype=torch.float32).view(300, 4)
Y = torch.arange(300) % 3
NAMES = [f"class {label}" for label in Y.tolist()]
PACKAGE = Path(laplace_metric.__file__).parent
ROOM = "laplace_metric.inputs"
KINDS = ("plain", "numbers", "is_rows", "as_batches", "yields_items", "gathered_texts", "labels_of")


def test_only_the_room_of_inputs_asks_what_kind_of_thing_was_passed():
    readers = set(KINDS)
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "inputs":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOM):
                read_again = readers & {alias.name for alias in node.names}
                assert not read_again, f"{path.relative_to(PACKAGE)} imports {read_again}"


KINDS_OF_DATA = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "float64": lambda: X.double().numpy(),
    "frame": lambda: pd.DataFrame(X.numpy()),
    "rows": lambda: X.tolist(),
    "vectors in cells": lambda: pd.Series(list(X.numpy())),
    "data set": lambda: TensorDataset(X, Y),
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=100),
    "batches": lambda: [X[:100], X[100:]],
    "generator": lambda: (part for part in X.split(64)),
    "pairs": lambda: [(X[:100], Y[:100]), (X[100:], Y[100:])],
    "mapping": lambda: {"x": X, "labels": Y},
}


@pytest.mark.parametrize("kind", KINDS_OF_DATA)
def test_every_kind_of_data_has_the_same_rows_in_the_same_order(kind):
    inputs = read_inputs("queries", KINDS_OF_DATA[kind]())
    batches = list(inputs)
    parts = [b.inputs["x"] if isinstance(b.inputs, dict) else b.inputs for b in batches]
    assert torch.equal(torch.cat([torch.as_tensor(part) for part in parts]).float(), X)
    assert inputs.count in (None, 300)
    assert inputs.n_batches in (None, len(batches))
    for batch in batches:
        assert batch.labels is None or torch.is_tensor(batch.labels)


@pytest.mark.parametrize("kind", [k for k in KINDS_OF_DATA if k != "generator"])
def test_inputs_are_read_as_often_as_asked_and_by_each_door_as_they_are(kind):
    inputs = read_inputs("queries", KINDS_OF_DATA[kind](), NAMES)
    assert read_inputs("gallery", inputs) is inputs
    once, again = list(inputs), list(inputs)
    assert len(once) == len(again)
    labelled = read_inputs("loader", inputs, labelled=True)
    codes = torch.cat([batch.labels for batch in labelled])
    assert [labelled.names[code] for code in codes.tolist()] == NAMES


def test_class_names_of_labelled_batches_come_back_as_names():
    labelled = read_inputs("loader", [(X[:3], ["b", "a", "b"])], labelled=True)
    _, column, _ = read_inputs("items", labelled).with_column()
    assert column.values.tolist() == ["b", "a", "b"]


def test_a_generator_can_be_held():
    held = read_inputs("queries", KINDS_OF_DATA["generator"]()).held()
    assert [len(batch.inputs) for batch in held] == [64, 64, 64, 64, 44]
    assert [len(batch.inputs) for batch in held] == [64, 64, 64, 64, 44]


def test_labels_of_batches_count_where_none_stand_next_to_them():
    read = read_inputs("items", [(X[:4], ["b", "a", "b", "a"]), (X[4:6], ["c", "a"])])
    batches, column, sizes = read.with_column()
    assert (len(batches), sizes) == (2, [4, 2])
    assert column.values.tolist() == ["b", "a", "b", "a", "c", "a"]
    labelled = read_inputs("loader", read, labelled=True)
    assert sorted(set(labelled.names.values())) == []  # nothing was read yet
    codes = torch.cat([batch.labels for batch in labelled]).tolist()
    assert [labelled.names[code] for code in codes] == column.values.tolist()
    with pytest.raises(LabelError, match="no labels"):
        read_inputs("items", X).with_column()
    with pytest.raises(InputError, match="labels has 2.*for 300"):
        read_inputs("items", X, [1, 2]).with_column()


def test_labels_that_are_missing_are_named_by_the_row_of_the_call():
    loader = [(X[:100], Y[:100].tolist()), (X[100:103], [0, None, 1])]
    with pytest.raises(LabelError, match=r"loader batch 1.*row 101 "):
        list(read_inputs("loader", loader, labelled=True))
    with pytest.raises(LabelError, match=r"batch 1.*\[200, 4\].*labels are missing"):
        list(read_inputs("loader", [(X[:100], Y[:100]), X[100:]], labelled=True))
    unlabelled = read_inputs("items", [(X[:100], Y[:100]), X[100:]])
    with pytest.raises(LabelError, match=r"batch 1.*\[200, 4\].*labels are missing"):
        list(read_inputs("loader", unlabelled, labelled=True))


def test_texts_that_are_missing_are_named_by_the_row_of_the_call():
    loader = [(["a", "b"], [0, 1]), (["c", None], [0, 1])]
    with pytest.raises(InputError, match=r"text.*missing.*row 3.*1 of.*2 rows"):
        list(read_inputs("loader", loader, labelled=True))


def test_one_batch_is_read_as_a_model_is_called_with_it():
    assert read_batch("x", X) is X
    assert read_batch("x", X.tolist()).shape == (300, 4)
    assert read_batch("x", pd.Series(["a", "b"])) == ["a", "b"]
    assert isinstance(read_batch("x", [X, X]), tuple)
    read = read_batch("x", {"ids": [[1, 2], [3, 4]], "labels": [0, 1]})
    assert list(read) == ["ids"]
    assert read["ids"].tolist() == [[1, 2], [3, 4]]
    assert read_batch("x", read)["ids"] is read["ids"]
    with pytest.raises(InputError, match="x is a str.*one text"):
        read_batch("x", "a text")


def test_vectors_are_finite_rows_of_one_size():
    assert read_vectors("items", X.tolist()).dtype == torch.float64
    assert read_vectors("items", X[0], 4).shape == (1, 4)
    tracked = X.clone().requires_grad_()
    assert read_vectors("items", tracked).requires_grad
    with pytest.raises(InputError, match=r"items.*\(4,\).*\[N, D\]"):
        read_vectors("items", X[0])
    with pytest.raises(NonFiniteError, match=r"items.*NaN.*row 1.*1 of 2"):
        read_vectors("items", [[0.0, 1.0], [np.nan, 1.0]])


def test_items_of_an_encoder_are_cut_whatever_they_are():
    class Picture:
        pass

    pictures = [Picture() for _ in range(300)]
    parts = [batch.inputs for batch in read_items("images", pictures)]
    assert [len(part) for part in parts] == [256, 44]
    assert [picture for part in parts for picture in part] == pictures
    with pytest.raises(InputError, match="several lengths"):
        read_items("texts", {"ids": X, "mask": X[:3]})


def test_one_batch_is_no_loader():
    for one in (X, {"x": X}):
        with pytest.raises(InputError, match="loader is a .*iterable of batches"):
            read_loader("loader", one)
    with pytest.raises(InputError, match="queries.*single number"):
        read_inputs("queries", np.array(3.0))
    with pytest.raises(InputError, match="queries.*a int"):
        list(read_inputs("queries", 3))


def test_a_stream_without_a_length_is_read():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(X)

    inputs = read_inputs("queries", DataLoader(Stream(), batch_size=100))
    assert inputs.n_batches is None
    assert [len(batch.inputs) for batch in inputs] == [100, 100, 100]


class Counted(TensorDataset):
    """A data set that counts how often each of its items is read."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.reads = np.zeros(len(self), int)

    def __getitem__(self, row):
        self.reads[row] += 1
        return super().__getitem__(row)


@pytest.fixture
def problem():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(240) % 4
    x = 3 * nn.functional.one_hot(y, 6) + torch.randn(240, 6, generator=g)
    torch.manual_seed(0)
    return x, y, nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
def test_a_guard_and_its_parts_agree_on_what_was_read(problem):
    x, y, model = problem
    expected = Guard(x, y, model=model, trained_on_items=False)
    inputs = read_inputs("items", x, y)
    for items, labels in ((inputs, None), (TensorDataset(x, y), None), (iter([(x, y)]), None)):
        guard = Guard(items, labels, model=model, trained_on_items=False)
        assert torch.equal(guard.index.items.encoded.mean, expected.index.items.encoded.mean)
        assert guard.ask(x).label.tolist() == expected.ask(x).label.tolist()


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
def test_a_guard_of_vectors_takes_iterators_and_what_was_read(problem):
    x, y, _ = problem
    expected = Guard(x.numpy(), y).index.items.encoded.mean
    for items, labels in ((iter(x.numpy()), y), (read_inputs("items", x, y), None)):
        assert torch.equal(Guard(items, labels).index.items.encoded.mean, expected)
    with pytest.raises(InputError, match=r"is a str.*one text.*folder pass datasets\.load_folder"):
        Guard("a text", y)
    broken = x.clone()
    broken[231] = torch.nan
    with pytest.raises(NonFiniteError, match=r"row 231 "):
        Guard(read_inputs("items", broken.split(100)), y)


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
def test_a_guard_reads_each_item_once(problem):
    x, y, model = problem
    data = Counted(x, y)
    Guard(data, model=model, trained_on_items=False)
    assert data.reads[1:].max() == 1
    assert data.reads[0] <= 2  # the first one says what kind of data these are
    held_out = Counted(x, y)
    Guard(x, y, model=model, held_out=(held_out, None))
    assert held_out.reads[1:].max() == 1


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
def test_a_guard_of_texts_reads_them_once(monkeypatch):
    from laplace_metric.inputs import _batches, _inputs

    calls, items = [], texts(120)
    for module in (_batches, _inputs):
        read = module.gathered_texts
        monkeypatch.setattr(
            module,
            "gathered_texts",
            lambda name, given, read=read: calls.append((name, len(given))) or read(name, given),
        )
    Guard(*items, model=Words(), trained_on_items=False)
    assert calls == [("items", 120)]


def test_trainings_take_data_sets_and_arrays_of_rows(problem):
    x, y, _ = problem

    def trained(loader, train):
        torch.manual_seed(1)
        model = nn.Linear(6, 3)
        train(model, loader)
        return model.weight.detach()

    def plain(model, loader):
        train_embedder(model, loader, lambda z, _: z.square().mean(), epochs=2, progress=False)

    def online(model, loader):
        learner = OnlineLaplace(model)
        learner.fit(loader, lambda z, _: z.square().mean(), epochs=2, progress=False, seed=0)

    for train in (plain, online):
        expected = trained([(x, y)], train)
        for same in (TensorDataset(x, y), [(x.tolist(), y.tolist())]):
            torch.testing.assert_close(trained(same, train), expected)


def test_an_embedder_takes_what_was_read(problem):
    x, y, model = problem
    expected = LaplaceEmbedder(model).fit(x, y, progress=False)
    inputs = read_inputs("inputs", x, y, labelled=True)
    assert isinstance(inputs, Inputs)
    fitted = LaplaceEmbedder(model).fit(inputs, progress=False)
    assert torch.equal(fitted(x).variance, expected(x).variance)
    index = fitted.index(inputs, progress=False)
    assert index.labels.tolist() == y.tolist()
    assert index.search(read_inputs("queries", x[:3]), k=1).ids[:, 0].tolist() == [0, 1, 2]
