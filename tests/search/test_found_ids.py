"""What a search function may return, and how anything else is called."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from laplace_metric import Guard
from laplace_metric.errors import InputError

X, Y = load_digits(return_X_y=True)
X = X.astype(np.float32)
N = 300


def exact(v, k):
    return ((v[:, None] - X[:N]) ** 2).sum(-1).argsort(1, kind="stable")[:, :k]


def shorter(v, k):
    return [row[: k - i % 3] for i, row in enumerate(exact(v, k))]


def guarded(search):
    return Guard(X[:N], Y[:N], search=search, precision=0.8, distance="euclidean")


@pytest.mark.parametrize(
    "search",
    [
        shorter,
        lambda v, k: tuple(row.tolist() for row in shorter(v, k)),
        lambda v, k: [torch.tensor(row) for row in shorter(v, k)],
        lambda v, k: np.array([*shorter(v, k), None], dtype=object)[:-1],
        lambda v, k: torch.tensor(exact(v, k)),
    ],
)
def test_lists_may_be_of_unequal_length(search):
    answers = guarded(search).ask(X[N:600])
    label = np.array([-1 if one is None else one for one in answers.label])
    assert answers.answered.mean() > 0.5
    assert (label == Y[N:600])[answers.answered].mean() > 0.9


def test_lists_that_become_empty_are_no_answer():
    live = {"search": exact}
    guard = guarded(lambda v, k: live["search"](v, k))
    asked = X[N : N + 20]
    before = guard.ask(asked).answered
    live["search"] = lambda v, k: [row if i % 2 else [] for i, row in enumerate(exact(v, k))]
    with pytest.warns(UserWarning, match="unlike all.*calibrated"):
        answers = guard.ask(asked)
    assert np.array_equal(answers.answered, before & (np.arange(20) % 2 == 1))
    live["search"] = lambda v, k: [[] for _ in v]
    with pytest.warns(UserWarning, match="20 of 20.*queries"):
        assert not guard.ask(asked).answered.any()
    live["search"] = lambda v, k: [[]] * (len(v) - 1)
    with pytest.raises(InputError, match="19 rows.*0 ids.*20 rows"):
        guard.ask(asked)


def distances(v, k):
    return np.zeros((len(v), k), np.float32)


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        (lambda v, k: (distances(v, k), exact(v, k)), r"tuple with a table .*pair \(D, I\)"),
        (lambda v, k: [distances(v, k).tolist(), exact(v, k).tolist()], r"list with .*\(D, I\)"),
        (lambda v, k: np.stack([distances(v, k), exact(v, k)]), r"ndarray with .*\(D, I\)"),
        (lambda v, k: [[(i, 0.5) for i in row] for row in exact(v, k)], r"the ids alone"),
        (lambda v, k: exact(v, k)[0].tolist(), "a list of single ids for 200 queries: return a"),
        (lambda v, k: exact(v, k)[0], "a ndarray of single ids for 200 queries"),
        (lambda v, k: dict(enumerate(exact(v, k))), "returned a dict: return a list of ids"),
        (lambda v, k: iter(exact(v, k)), "iterator: return a list of ids"),
        (lambda v, k: [set(row.tolist()) for row in exact(v, k)], "single ids"),
        (lambda v, k: exact(v, k)[:, [0, *range(k - 1)]], r"more than once for one query, \[0,"),
    ],
)
def test_anything_else_is_called_what_it_is(search, problem):
    with pytest.raises(InputError, match=problem):
        guarded(search)
