"""The row that an error names is that of the call, although a model sees batches."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.inputs._rows_in_errors import bad_rows, rows_before

WIDTH, WRONG = 16, 290


def draw(n, seed):
    g = np.random.default_rng(seed)
    y = g.integers(0, 10, n)
    x = np.random.default_rng(99).normal(size=(10, WIDTH))[y] + 0.3 * g.normal(size=(n, WIDTH))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), y


X, Y = draw(600, 0)
Q, QY = draw(300, 1)


class Held:
    """What is asked in each test: a guard, an index, one of a model, and its embedder."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.guard = Guard(X, Y, precision=0.5)
        self.embedder = LaplaceEmbedder.from_embeddings(X, Y)
        self.index = self.embedder.index(X, Y, progress=False)
        self.index.calibrate(Q, QY)
        self.network = torch.nn.Linear(WIDTH, 8, bias=False)
        self.of_model = LaplaceEmbedder(self.network).fit(X, Y, progress=False)
        self.seen = self.of_model.index(X, Y, progress=False)


@pytest.fixture(scope="module")
def held():
    return Held()


def parts(x, y=None, size=64):
    rows = [slice(i, i + size) for i in range(0, len(x), size)]
    x = torch.from_numpy(x)
    return [x[r] if y is None else (x[r], torch.from_numpy(y[r])) for r in rows]


ASKED = {
    "ask": lambda h, q: h.guard.ask(q),
    "ask a data frame": lambda h, q: h.guard.ask(pd.DataFrame(q.astype(np.float64))),
    "ask a loader": lambda h, q: h.guard.ask(parts(q)),
    "held_out": lambda h, q: Guard(X, Y, held_out=(q, QY)),
    "search": lambda h, q: h.index.search(q),
    "search by a model": lambda h, q: h.seen.search(q),
    "search by a model, a loader": lambda h, q: h.seen.search(parts(q)),
    "classify": lambda h, q: h.index.ask(q),
    "calibrate": lambda h, q: h.index.calibrate(q, QY),
    "evaluate": lambda h, q: h.index.evaluate(q, QY),
    "evaluate, ood": lambda h, q: h.index.evaluate(Q, QY, q),
    "label_sets": lambda h, q: h.index.label_sets(q),
    "retrieval_sets": lambda h, q: h.index.retrieval_sets(q),
    "add": lambda h, q: h.index.add(q, QY, ids=np.arange(9000, 9300)),
    "embedder": lambda h, q: h.embedder(q),
    "embedder of a model": lambda h, q: h.of_model(torch.from_numpy(q)),
    "uncertainties": lambda h, q: h.embedder.uncertainties(parts(q), progress=False),
    "epistemic": lambda h, q: h.of_model.uncertainties(parts(q), kind="epistemic", progress=False),
}
ITEMS = {
    "Guard": lambda h, x: Guard(x, Y, distance="arccos"),
    "Guard of a model": lambda h, x: Guard(x, Y, model=h.network, trained_on_items=False),
    "from_embeddings": lambda h, x: LaplaceEmbedder.from_embeddings(x, Y, distance="arccos"),
    "fit": lambda h, x: LaplaceEmbedder(h.network).fit(x, Y, progress=False),
    "fit of a loader": lambda h, x: LaplaceEmbedder(h.network).fit(parts(x, Y), progress=False),
    "fit by batches": lambda h, x: LaplaceEmbedder(h.network, pairs="batch").fit(
        parts(x, Y), progress=False
    ),
    "index": lambda h, x: h.embedder.index(x, Y, progress=False),
    "index of a model": lambda h, x: h.of_model.index(x, Y, progress=False),
    "cross_index": lambda h, x: h.embedder.cross_index(x, Y, progress=False),
    "cross_index of a wrapped model": lambda h, x: LaplaceEmbedder(
        torch.nn.Sequential(h.network)
    ).cross_index(x, Y, progress=False),
}


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
@pytest.mark.parametrize("way", [*ASKED, *ITEMS])
def test_the_row_of_a_number_that_is_none_is_that_of_the_call(held, way, value):
    rows = (Q if way in ASKED else X).copy()
    rows[WRONG] = value
    with pytest.raises(InputError) as error:
        {**ASKED, **ITEMS}[way](held, rows)
    assert re.search(rf"row {WRONG}\b", str(error.value)), str(error.value)


def test_several_rows_and_how_many_of_which_are_named(held):
    rows = Q.copy()
    rows[[260, 290]] = np.nan
    told = r"rows 260, 290 \(2 of the 44 rows from 256 on\)"
    with pytest.raises(InputError, match=told):
        held.guard.ask(rows)
    with pytest.raises(InputError, match=r"rows 260, 290.*2 of 300"):
        held.embedder(rows)


def test_rows_are_counted_from_the_start_again_after_an_error():
    bad = torch.arange(5) == 3
    with pytest.raises(ValueError, match="row 7"), rows_before(4):
        raise ValueError(bad_rows(bad))
    assert bad_rows(bad) == "row 3 (1 of 5)"
