"""Calls of a guard that other libraries have, and what is said of them."""

import copy
import pickle
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from laplace_metric import Guard, Index, LaplaceEmbedder, calibrate_scores
from laplace_metric.errors import InputError, LabelError

X, Y = load_digits(return_X_y=True)
X = X.astype(np.float32)
N = 300
PAIRS = TensorDataset(torch.tensor(X[:N]), torch.tensor(Y[:N]))


@pytest.fixture(scope="module")
def guard():
    return Guard(X[:N], Y[:N], precision=0.8)


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ("metric", "distance='arccos' or 'euclidean'"),
        ("device", "move the model first"),
        ("threshold", "state precision="),
        ("n_neighbors", r"guard\.index\.search\(queries, k\)"),
        ("validation", r"held_out=\(queries, labels\)"),
        ("y", "pass labels"),
        ("precison", "did you mean 'precision'"),
    ],
)
def test_keywords_of_other_libraries_name_ours(keyword, advice):
    with pytest.raises(TypeError, match=f"Guard.*unexpected .*'{keyword}'.*{advice}"):
        Guard(X[:N], Y[:N], **{keyword: 0.9})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("predict", "guard.ask(queries).label"),
        ("score", "guard.evaluate(queries, labels).right_share"),
        ("search", "guard.index.search(queries, k)"),
        ("fit", "guard.calibrate(queries, labels)"),
        ("predict_proba", "guard.ask(queries).probability"),
        ("answer", "guard.ask(queries)"),
        ("anwser", "guard.ask(queries)"),
        ("pedict", "guard.ask(queries).label"),
        ("whatever", "no attribute 'whatever'"),
    ],
)
def test_methods_of_other_libraries_name_ours(guard, name, advice):
    assert not hasattr(guard, name)
    with pytest.raises(AttributeError) as error:
        getattr(guard, name)
    assert advice in str(error.value)


@pytest.mark.parametrize(("name", "ours"), [("precison", "precision"), ("evalute", "evaluate")])
def test_a_name_of_ours_that_is_misspelt_is_left_to_python(guard, name, ours, capsys):
    with pytest.raises(AttributeError) as error:
        getattr(guard, name)
    assert str(error.value) == f"'Guard' object has no attribute {name!r}"
    sys.__excepthook__(error.type, error.value, None)
    assert f"Did you mean: {ours!r}?" in capsys.readouterr().err


def test_attributes_are_there_or_not_as_before(guard):
    assert hasattr(guard, "rule")
    assert getattr(guard, "predict", None) is None
    for again in (copy.copy(guard), copy.deepcopy(guard), pickle.loads(pickle.dumps(guard))):
        assert again.ask(X[N : N + 9]).label.tolist() == guard.ask(X[N : N + 9]).label.tolist()

    class Broken(Guard):
        @property
        def rule(self):
            return self.missing_inside

    with pytest.raises(AttributeError, match="missing_inside"):
        _ = Broken.__new__(Broken).rule


def test_a_number_too_many_names_its_argument(guard):
    with pytest.raises(TypeError, match=r"Guard\(..., 0.9\).*argument.*precision="):
        Guard(X[:N], Y[:N], 0.9)
    with pytest.raises(InputError, match=r"guard\.at\(0\.9\)\.ask\(queries\).*another"):
        guard.ask(X[N:], 0.9)


def test_keywords_of_loading_and_of_scores_name_ours(guard, tmp_path):
    with pytest.raises(TypeError, match=r"^Guard\.load\(\).*'held_out'.*guard\.calibrate"):
        Guard.load(tmp_path / "guard", held_out=(X, Y))
    with pytest.raises(TypeError, match=r"^Guard\.load\(\).*did you mean 'probe'"):
        Guard.load(tmp_path / "guard", prob=X)
    with pytest.raises(TypeError, match=r"^calibrate_scores\(\).*did you mean 'mated'"):
        calibrate_scores(X[:, 0], Y > 4, matted=Y > 2)
    with pytest.raises(TypeError, match=r"^calibrate_scores\(\.\.\., 'score'\): name .*items="):
        calibrate_scores(X[:, 0], Y > 4, "score")


@pytest.mark.parametrize("labels", [Y[N:], torch.tensor(Y[N:]), Y[N:].tolist()])
def test_labels_next_to_what_is_asked_belong_elsewhere(guard, labels):
    with pytest.raises(InputError, match=r"queries alone.*guard\.evaluate.*calibrate") as error:
        guard.ask(X[N:], labels)
    assert "precision" not in str(error.value)
    with pytest.raises(TypeError, match=r"Guard\(..., ndarray \[300\]\): .*precision=\.\.\."):
        Guard(X[:N], Y[:N], Y[:N])


@pytest.mark.parametrize("pair", [tuple, list])
def test_queries_with_labels_are_refused(guard, pair):
    for ask in (guard.ask, guard.index.search, guard.index.label_sets):
        with pytest.raises(InputError, match=f"{pair.__name__}.*queries and labels"):
            ask(pair([X[N : N + 30], Y[N : N + 30]]))


@pytest.mark.parametrize(
    "nothing", [X[:0], torch.tensor(X[:0]), []], ids=["array", "tensor", "list"]
)
def test_nothing_asked_is_nothing_answered(guard, nothing):
    answers, found = guard.ask(nothing), guard.index.search(nothing, 3)
    assert len(answers) == len(found) == 0
    assert answers.label.shape == answers.probability.shape == (0,)
    assert found.ids.shape == found.distance.shape == (0, 3)
    assert len(guard.index.retrieval_sets(nothing)) == len(guard.index.label_sets(nothing)) == 0
    assert found.match_probability.dtype == guard.index.search(X[:1], 3).match_probability.dtype


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(PAIRS, 64),
        lambda: DataLoader(PAIRS, 64, shuffle=True),
        lambda: PAIRS,
        lambda: [PAIRS[:100], PAIRS[100:]],
        lambda: (PAIRS[i : i + 100] for i in range(0, N, 100)),
    ],
    ids=["loader", "shuffled", "data set", "list", "generator"],
)
def test_loaders_of_vectors(loader, guard):
    made = Guard(loader(), precision=0.8)
    answers = made.ask(X[N : N + 300])
    label, given = answers.label[answers.answered], Y[N : N + 300][answers.answered]
    assert answers.answered.mean() > 0.5
    assert (label == given).mean() > 0.9
    plain = Guard(DataLoader(torch.tensor(X[:N]), 64), Y[:N], precision=0.8)
    assert plain.rule.value == guard.rule.value


def test_a_loader_without_labels_is_told_so():
    with pytest.raises(LabelError, match="labels=None.*pass a label"):
        Guard(DataLoader(torch.tensor(X[:N]), 64))


def test_files_in_the_home_folder(guard, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    guard.save("~/guard.safetensors")
    assert (tmp_path / "guard.safetensors").is_file()
    assert Guard.load("~/guard.safetensors").rule.value == guard.rule.value
    guard.index.save("~/index.safetensors")
    assert len(Index.load("~/index.safetensors", guard.embedder)) == N
    guard.embedder.save("~/posterior.safetensors")
    assert LaplaceEmbedder.load("~/posterior.safetensors")(X[:3]).mean.shape == (3, 64)
    monkeypatch.chdir(tmp_path)
    guard.save("~copy.safetensors")  # of no user
    assert (tmp_path / "~copy.safetensors").is_file()
