"""Texts are texts in whatever they come: never a batch of their letters."""

from __future__ import annotations

import io
import warnings
import zlib
from collections import OrderedDict, UserList, deque

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import EmptyLoaderError, InputError, LabelError
from laplace_metric.inputs import _texts


class Words(nn.Module):
    """The mean of a vector for each word of a text; of a str it would embed the letters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer = nn.EmbeddingBag(997, 24), nn.Linear(24, 8)

    def forward(self, texts):
        ids = [[zlib.crc32(w.encode()) % 997 for w in t.split()] or [0] for t in texts]
        starts = np.cumsum([0] + [len(own) for own in ids[:-1]])
        return self.layer(
            self.words(torch.tensor([i for own in ids for i in own]), torch.tensor(starts))
        )


def texts(n: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    g, y = np.random.default_rng(seed), np.arange(n) % 5
    return [" ".join(g.choice([f"w{c}_{j}" for j in range(12)], 8)) for c in y], y


class Stream:
    """Anything that can be iterated, again and again."""

    def __init__(self, values):
        self.values = values

    def __iter__(self):
        return iter(self.values)


HOLDERS = {
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "values of a dict": lambda t: dict(enumerate(t)).values(),
    "keys of a dict": lambda t: OrderedDict.fromkeys(t).keys(),
    "map": lambda t: map(str.strip, t),
    "generator": lambda t: (x for x in t),
    "iterator": iter,
    "filter": lambda t: filter(None, t),
    "open file": lambda t: io.StringIO("".join(f"{x}\n" for x in t)),
    "file with ends of Windows": lambda t: io.StringIO("".join(f"{x}\r\n" for x in t), newline=""),
    "series": pd.Series,
    "series of objects": lambda t: pd.Series(t, dtype=object),
    "index": pd.Index,
    "frame of one column": lambda t: pd.DataFrame({"text": t}),
    "array": np.array,
    "array of objects": lambda t: np.array(t, dtype=object),
    "array of strings": lambda t: np.array(t, dtype=np.dtypes.StringDType()),
    "one column": lambda t: np.array(t)[:, None],
    "strings of NumPy": lambda t: [np.str_(x) for x in t],
    "list of ours": UserList,
    "stream": Stream,
    "loader of single texts": lambda t: DataLoader(t, batch_size=None),
    "loader of batches": lambda t: DataLoader(t, batch_size=7),
    "generator of batches": lambda t: (t[i : i + 7] for i in range(0, len(t), 7)),
}


@pytest.fixture(scope="module")
def guard() -> Guard:
    return Guard(*texts(200), model=Words(), precision=0.5, trained_on_items=False)


@pytest.mark.parametrize("holder", HOLDERS)
def test_queries_may_be_held_by_anything(holder, guard):
    t, _ = texts(10, 1)
    expected, found = guard.ask(t), guard.ask(HOLDERS[holder](t))
    assert len(found) == 10
    torch.testing.assert_close(found.probability, expected.probability)
    assert guard.index.search(HOLDERS[holder](t), k=3).ids.shape == (10, 3)


@pytest.mark.parametrize("holder", HOLDERS)
def test_items_may_be_held_by_anything(holder):
    t, y = texts(60)
    q, of = texts(40, 1)
    hold = HOLDERS[holder]
    embedder = LaplaceEmbedder(Words()).fit(hold(t), y, progress=False)
    expected = LaplaceEmbedder(Words()).fit(t, y, progress=False)
    assert embedder.fitted_.n_points == 60
    torch.testing.assert_close(embedder(q).variance, expected(q).variance, rtol=1e-4, atol=1e-7)
    index = embedder.index(hold(t), y, progress=False)
    index.add(hold(q[:9]), of[:9])
    assert len(index) == 69
    assert len(index.calibrate(hold(q), of).known) == 40
    assert index.evaluate(hold(q), of).queries == 40
    assert len(embedder.cross_index(hold(t), y, progress=False)) == 60
    assert len(embedder.uncertainties(hold(t), progress=False)) == 60


WHOLE = [name for name in HOLDERS if name != "stream" and "batches" not in name]


@pytest.mark.parametrize("holder", [n for n in WHOLE if not n.startswith("loader")])
def test_a_call_takes_them_as_one_batch(holder):
    t, y = texts(60)
    embedder = LaplaceEmbedder(Words()).fit(t, y, progress=False)
    torch.testing.assert_close(embedder(HOLDERS[holder](t[:9])).mean, embedder(t[:9]).mean)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("held_out", [False, True])
def test_a_guard_reads_what_can_be_read_once(holder, held_out):
    t, y = texts(100)
    q, of = texts(60, 1)
    hold = HOLDERS[holder]
    how = {"held_out": (hold(q), of)} if held_out else {"trained_on_items": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Guard(hold(t), y, model=Words(), precision=0.3, **how)
    assert len(found.index) == 100


REFUSED = {
    "one text": (lambda: "w1_1 w1_2", r"is a str, one text: pass a list of texts, \[text\]"),
    "bytes": (lambda: b"w1_1", "is bytes"),
    "a list of bytes": (lambda: np.array([b"w1"]), "holds bytes"),
    "a set": (lambda: {"w1_1", "w1_2"}, "set, which has no order"),
    "a frozen set": (lambda: frozenset({"w1_1"}), "frozenset, which has no order"),
    "items of a dict": (lambda: {"a": "w1_1"}.items(), r"pass the values\(\) alone"),
    "a dict of texts": (lambda: {"a": "w1_1"}, r"mapping of single texts: pass its values\(\)"),
    "missing": (lambda: ["w1", None, "w2", float("nan")], r"missing in rows 1, 3 \(2 of 4\)"),
    "missing in front": (lambda: [None, "w1"], r"missing in row 0 \(1 of 2\)"),
    "a series with a gap": (lambda: pd.Series(["w1", None]), r"missing in row 1 \(1 of 2\)"),
    "a number among texts": (lambda: ["w1", 3], r"is a int, not a text, in row 1 \(1 of 2\)"),
    "a generator with a number": (lambda: iter(["w1", 3]), "not a text, in row 1"),
    "two columns": (lambda: np.array([["w1", "w2"]]), r"array of shape \(1, 2\)"),
    "columns of two kinds": (lambda: pd.DataFrame({"a": ["w1"], "b": [1.0]}), r"shape \(1, 2\)"),
    "a file of bytes": (lambda: io.BytesIO(b"w1\n"), "file of bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_list_of_texts_is_named(case, guard):
    make, message = REFUSED[case]
    for door in (guard.ask, lambda v: guard.index.search(v, k=1), guard.embedder):
        with pytest.raises(InputError, match=message):
            door(make())


def test_texts_without_labels_are_not_fitted():
    for hold in (list, iter, deque, np.array, pd.Series):
        with pytest.raises(LabelError, match=r"without labels.*fit\(inputs, labels\)"):
            LaplaceEmbedder(Words()).fit(hold(texts(10)[0]), progress=False)


def test_no_text_is_no_query(guard):
    for nothing in (iter([]), io.StringIO("")):
        with pytest.raises(EmptyLoaderError, match="queries holds nothing"):
            guard.ask(nothing)
    for nothing in ([], (), deque(), {}.values(), np.array([], str)):
        assert len(guard.ask(nothing)) == 0


def test_single_texts_and_batches_are_not_mixed(guard):
    for mixed in (Stream(["w1", ["w2"]]), Stream([["w1"], "w2"]), [["w1"], "w2"]):
        with pytest.raises(InputError, match="texts and batches|not a text|is a list"):
            guard.ask(mixed)


@pytest.mark.parametrize("n", [1, 4, 5, 11])
def test_blocks_of_single_texts_are_all_of_them(n, monkeypatch):
    monkeypatch.setattr(_texts, "BATCH_OF_TEXTS", 5)
    values = [str(i) for i in range(n)]
    groups = list(_texts.grouped_texts("queries", iter(values)))
    assert [x for group in groups for x in group] == values
    assert all(1 <= len(group) <= 5 for group in groups)
    rest = iter([[1], [2]])
    assert list(_texts.gathered_texts("queries", rest)) == [[1], [2]]
