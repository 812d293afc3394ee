"""``Guard``: one object that fits, calibrates itself, answers or abstains."""

import copy
import errno
import gc
import os
import pickle
import re
import warnings
import weakref
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from sklearn.datasets import load_digits, load_wine
from sklearn.neighbors import NearestNeighbors
from torch.utils.data import DataLoader, TensorDataset

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.calibration._conformal import least_common_p_values
from laplace_metric.calibration.probability._features import query_statistics, statistic_weights
from laplace_metric.errors import (
    CallError,
    EmptyLoaderError,
    FewQueriesWarning,
    FileFormatError,
    FittedQueriesWarning,
    InputError,
    UnfamiliarQueriesWarning,
    WriteError,
)
from laplace_metric.inputs import read_batch
from laplace_metric.inputs._columns import Column
from laplace_metric.models import Precomputed
from laplace_metric.models._trained import input_fingerprints, trained_on
from laplace_metric.online import OnlineLaplace
from laplace_metric.search import Index
from laplace_metric.search.engines._foreign_engine import ForeignEngine
from laplace_metric.training import train_embedder
from tests.saved_files import edit, flip, rewrite

X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER].astype(np.float32), Y[ORDER]
ITEMS, NEW = slice(0, 700), slice(1100, None)
NOISE = np.random.default_rng(0).uniform(0, 16, (50, 64)).astype(np.float32)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def guard():
    return Guard(X[ITEMS], Y[ITEMS], precision=0.95)


def test_keeps_its_precision_on_new_queries_and_abstains_on_noise(guard):
    answers = guard.ask(X[NEW])
    answered = answers.answered
    assert answered.mean() > 0.85
    assert (answers.label[answered] == Y[NEW][answered]).mean() >= 0.95
    with pytest.warns(
        UnfamiliarQueriesWarning,
        match=r"50 of 50.*100%, .*93% to 100%.*unlike",
    ):
        noise = guard.ask(NOISE)
    assert set(noise.label) == {None}
    assert set(noise.reason) == {"unfamiliar"}
    assert noise[0].label is None
    assert noise[0].reason == "unfamiliar"


def test_is_the_index_with_a_guaranteed_threshold(guard):
    embedder = LaplaceEmbedder(Precomputed(64), head="append", **EUCLIDEAN)
    index = embedder.cross_index(X[ITEMS], Y[ITEMS], progress=False)
    threshold = index.calibration.guarantee(precision=0.95, of="label")
    assert guard.rule.value == threshold.value
    expected = index.ask(X[NEW], threshold)
    assert guard.ask(X[NEW]).label.tolist() == expected.label.tolist()


def test_says_what_it_guarantees_and_what_it_would_take(guard):
    assert "at least 95% are right" in repr(guard)
    assert "its own items: simulated, not proven; holds only if the encoder was" in repr(guard)
    assert "80% right" in repr(guard)
    with pytest.warns(FewQueriesWarning, match=r"0\.992.*guaranteed.*guard\.at\(0\.9"):
        strict = guard.at(0.992)
    assert "about 150 more items or held-out queries needed, or many more" in repr(strict)
    with pytest.raises(InputError, match=r"precision=0\.992 .*guaranteed"):
        strict.ask(X[NEW][:1])
    assert guard.precision == 0.95  # the other one is a copy


def test_a_keyword_that_a_method_does_not_have_is_told_what_was_meant(guard):
    for call, told in (
        (lambda: guard.ask(X[NEW], precision=0.9), r"Guard\.ask.*'precision': .*guard\.at\(prec"),
        (
            lambda: guard.evaluate(X[NEW], Y[NEW], k=5),
            r"'k': call guard\.index\.search\(q",
        ),
        (lambda: guard.calibrate(X[NEW], Y[NEW], open_fraction=0.1), "mean 'open_set_fraction'"),
        (lambda: guard.at(0.9, byclass=True), "mean 'by_class'"),
        (lambda: guard.add(X[NEW], Y[NEW], id=[1]), "mean 'ids'"),
    ):
        with pytest.raises(TypeError, match=told):
            call()
    with pytest.raises(CallError, match=r"guard\.at\(0\.9\)\.ask"):
        guard.ask(X[NEW], 0.9)


@pytest.mark.parametrize("items", [X[:0], [], X[:0].tolist()])
def test_no_items_are_told_what_it_takes(items):
    with pytest.raises(EmptyLoaderError, match="items are empty: .*each of two labels"):
        Guard(items, [])


def test_held_out_queries_calibrate(guard):
    held_out = X[700:1100], Y[700:1100]
    tested = Guard(X[ITEMS], Y[ITEMS], held_out=held_out)
    assert not tested.calibration.own_items
    assert "held-out queries: simulated, not proven" in repr(tested)
    answers = tested.ask(X[NEW])
    answered = answers.answered
    assert (answers.label[answered] == Y[NEW][answered]).mean() >= 0.9
    fitted = tested.embedder.fitted_
    again = Guard(X[ITEMS], Y[ITEMS], model=tested.embedder, held_out=held_out)
    assert again.embedder.fitted_ is fitted
    hits = again.index.search(X[NEW], again.calibration.depth).hits
    known, new = again.calibration.statistics, query_statistics(hits)
    weights = statistic_weights(again.calibration.epistemic_weight)
    expected = least_common_p_values(known, new, weights)
    np.testing.assert_array_equal(again.calibration.assess(hits).p_value, expected)


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_a_query_alone_is_answered_as_among_others(distance):
    x = unit(X) if distance == "arccos" else X
    own = Guard(x[ITEMS], Y[ITEMS], distance=distance)
    asked = np.concatenate([x[NEW][:20], x[ITEMS][:5], NOISE[:5]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfamiliarQueriesWarning)
        together = own.ask(asked)
        alone = [own.ask(asked[i : i + 1]) for i in range(len(asked))]
    assert [answers.label[0] for answers in alone] == together.label.tolist()
    probability = np.concatenate([answers.probability for answers in alone])
    np.testing.assert_allclose(probability, together.probability, rtol=1e-4, atol=1e-6)


def test_names_and_a_fitted_embedder():
    names = np.array([f"digit {y}" for y in Y])
    model = torch.nn.Sequential(torch.nn.Linear(64, 16))
    torch.manual_seed(0)
    embedder = LaplaceEmbedder(model).fit(torch.from_numpy(X[ITEMS]), Y[ITEMS], progress=False)
    how = {"model": embedder, "precision": 0.8, "trained_on_items": False}
    guard = Guard(torch.from_numpy(X[ITEMS]), names[ITEMS], **how)
    assert guard.ask(X[NEW][:5]).label.dtype == object
    assert guard.embedder is embedder
    with pytest.raises(InputError, match="prior_precision"):
        Guard(X[ITEMS], Y[ITEMS], prior_precision=2.0, **how)


def test_of_many_items_a_part_calibrates(guard, monkeypatch):
    monkeypatch.setattr("laplace_metric.guard.LARGE", 600)
    monkeypatch.setattr("laplace_metric.guard.ASKED", 350)
    part = Guard(X[ITEMS], Y[ITEMS])
    assert len(part.index) == 700
    assert len(part.calibration.known) == 420  # three folds of five hold 350
    answered = part.ask(X[NEW]).answered
    assert (part.ask(X[NEW]).label[answered] == Y[NEW][answered]).mean() >= 0.9


@pytest.mark.parametrize(("n", "asked"), [(20_000, None), (20_001, 5_000)])
@pytest.mark.parametrize("as_given", [np.asarray, torch.from_numpy, lambda x: x.tolist()])
def test_of_more_than_20_000_items_5_000_calibrate(n, asked, as_given, monkeypatch):
    seen = []

    def stop(self, *items, n_queries, **settings):
        seen.append(n_queries)
        raise InputError("enough")

    monkeypatch.setattr(LaplaceEmbedder, "cross_index", stop)
    x = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    with pytest.raises(InputError, match="enough"):
        Guard(as_given(x), np.arange(n) % 10)
    assert seen == [asked]


def test_saved_and_read_again(guard, tmp_path):
    guard.save(tmp_path / "guard")
    again = Guard.load(tmp_path / "guard")
    assert again.ask(X[NEW]).label.tolist() == guard.ask(X[NEW]).label.tolist()
    assert again.precision == guard.precision
    path = tmp_path / "guard"
    assert [file.name for file in tmp_path.iterdir()] == ["guard"]
    for precision in (1.5, None, "a", 0, True):
        edit(path, "guard", precision=precision)
        with pytest.raises(FileFormatError, match=r"guard.* guard\.precision is"):
            Guard.load(path)
    guard.save(path)
    rewrite(path, "index", lambda content, _: content.pop("calibration"))
    with pytest.raises(FileFormatError, match="not calibrated by.*labels"):
        Guard.load(path)
    guard.save(path)
    flip(path, "index/mean")
    with pytest.raises(FileFormatError, match="guard.*damaged.*arrays"):
        Guard.load(path)
    with pytest.raises(FileFormatError, match="folder.*0.3 saved folders"):
        Guard.load(tmp_path)
    with pytest.raises(InputError, match="folder.*name.*file"):
        guard.save(tmp_path)


def test_a_guard_that_fails_to_be_saved_is_the_old_one(guard, tmp_path, monkeypatch):
    guard.save(tmp_path / "guard")
    before = (tmp_path / "guard").read_bytes()
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, Mock(side_effect=OSError(errno.ENOSPC, "no space left")))
            with pytest.raises(WriteError, match="guard cannot.*written: .*space left"):
                guard.at(0.8).save(tmp_path / "guard")
        assert (tmp_path / "guard").read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == ["guard"]


def test_the_parts_of_a_guard_are_read_alone(guard, tmp_path):
    guard.save(tmp_path / "guard")
    embedder = LaplaceEmbedder.load(tmp_path / "guard")
    index = Index.load(tmp_path / "guard", embedder, mmap=True)
    assert index.ask(X[NEW], guard.rule).label.tolist() == guard.ask(X[NEW]).label.tolist()


def find_nearest(queries, k):
    """A search of a module, which pickle writes by its name."""
    gaps = np.linalg.norm(X[ITEMS][None] - queries[:, None], axis=2)
    return gaps.argsort(1)[:, :k]


def test_guards_are_copied_and_pickled_or_say_how_to_save_them(guard):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatL2(X.shape[1])
    index.add(X[ITEMS].astype(np.float32))
    of_module = Guard(X[ITEMS], Y[ITEMS], search=find_nearest)
    own = Guard(X[ITEMS], Y[ITEMS], search=lambda queries, k: index.search(queries, k)[1])
    lists = faiss.index_factory(X.shape[1], "IVF16,Flat")
    lists.train(X[ITEMS])
    lists.add(X[ITEMS])
    lists.nprobe = 7
    wrapped = (Guard.wrap(one, Y[ITEMS]) for one in (index, lists))
    for one in (guard, *wrapped, of_module):
        again = pickle.loads(pickle.dumps(one))
        assert again.ask(X[NEW]).label.tolist() == one.ask(X[NEW]).label.tolist()
    for one in (copy.copy(own), copy.deepcopy(own)):
        assert one.ask(X[NEW]).label.tolist() == own.ask(X[NEW]).label.tolist()
    with pytest.raises(InputError, match=r"save\(path\).*search= to Guard\.load"):
        pickle.dumps(own)


# A model that was trained on its items.


@pytest.fixture(scope="module")
def trained():
    """A network that was trained on the items, and its loader."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    data = TensorDataset(torch.from_numpy(X[ITEMS]), torch.from_numpy(Y[ITEMS]))
    loader = DataLoader(data, batch_size=70, shuffle=True)
    train_embedder(model, loader, ContrastiveLoss(), epochs=3, progress=False)
    return model


HELD_OUT = X[700:1100], Y[700:1100]


@pytest.mark.parametrize("stated", [None, True])
def test_a_model_that_may_have_been_trained_on_the_items_needs_held_out_queries(stated):
    model = torch.nn.Sequential(torch.nn.Linear(64, 16))
    with pytest.raises(InputError, match=r"held_out=\(queries, labels\).*trained_on_items=False"):
        Guard(X[ITEMS], Y[ITEMS], model=model, trained_on_items=stated)
    with pytest.raises(InputError, match=r"held_out="):
        Guard(X[ITEMS], Y[ITEMS], model=LaplaceEmbedder(model), trained_on_items=stated)
    guard = Guard(X[ITEMS], Y[ITEMS], model=model, held_out=HELD_OUT, trained_on_items=stated)
    assert "held-out queries" in repr(guard)
    if stated:
        with pytest.raises(InputError, match="encoder was trained.*items"):
            Guard(X[ITEMS], Y[ITEMS], trained_on_items=True)


def test_what_is_stated_is_shown_and_must_be_true_or_false(guard, tmp_path):
    assert "holds only if the encoder was not trained on them" in repr(guard)
    stated = Guard(X[:300], Y[:300], precision=0.8, trained_on_items=False)
    assert "stated not to have trained the model" in repr(stated)
    stated.save(tmp_path / "guard")
    assert repr(Guard.load(tmp_path / "guard")) == repr(stated)
    edit(tmp_path / "guard", "guard", trained_on_items="no")
    with pytest.raises(FileFormatError, match="guard.trained_on_items.*'no'.*true or false"):
        Guard.load(tmp_path / "guard")
    with pytest.raises(InputError, match="trained_on_items='no'.*True, False.*None"):
        Guard(X[:300], Y[:300], trained_on_items="no")


def copied(model):
    return copy.deepcopy(model)


def loaded(model):
    fresh = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    fresh.load_state_dict(model.state_dict())
    return fresh


@pytest.mark.parametrize(
    "as_given",
    [
        lambda model: model,
        torch.nn.DataParallel,
        copied,
        loaded,
        lambda model: model[:1],  # its body
        lambda model: torch.nn.Sequential(model, torch.nn.Linear(8, 4)),
        LaplaceEmbedder,
        lambda model: LaplaceEmbedder(model).fit(X[ITEMS], Y[ITEMS], progress=False),
    ],
)
def test_a_model_that_this_package_trained_on_the_items_is_known(trained, as_given):
    with pytest.raises(InputError, match="model was trained.*100%.*items"):
        Guard(X[ITEMS], Y[ITEMS], model=as_given(trained), trained_on_items=False)


def test_cross_index_knows_a_model_that_was_trained_on_the_items(trained):
    for inputs in (X[ITEMS], X[ITEMS].astype(np.float64), [(torch.from_numpy(X[ITEMS]), None)]):
        with pytest.raises(InputError, match="model was trained.*100%.*items"):
            LaplaceEmbedder(trained).cross_index(inputs, Y[ITEMS], progress=False)
    few = np.concatenate([X[690:700], X[700:1090]])
    with pytest.raises(InputError, match="model was trained.*on 2%.*items"):
        LaplaceEmbedder(trained).cross_index(few, Y[690:1090], progress=False)


def test_other_items_than_those_of_the_training_calibrate_themselves(trained):
    guard = Guard(X[700:1100], Y[700:1100], model=trained, trained_on_items=False, precision=0.8)
    assert guard.calibration.own_items
    tuned = torch.nn.Sequential(copy.deepcopy(trained)[0], torch.nn.Linear(32, 8))
    for parameter in tuned[0].parameters():
        torch.nn.init.normal_(parameter)
    Guard(X[ITEMS], Y[ITEMS], model=tuned, trained_on_items=False, precision=0.8)


def test_a_search_of_the_users_is_guarded_where_an_index_would_rank_by_the_posterior():
    torch.manual_seed(0)
    kinds = {"distance": "euclidean", "hessian": "positives"}
    embedder = LaplaceEmbedder(torch.nn.Linear(64, 3), **kinds)
    embedder.fit([(torch.as_tensor(X[ITEMS]), torch.as_tensor(Y[ITEMS]))], progress=False)
    assert embedder.index(X[ITEMS], Y[ITEMS]).rank_by == "predictive"
    means = embedder(torch.as_tensor(X[ITEMS])).mean

    def nearest(queries, k):
        return torch.cdist(torch.as_tensor(queries), means).topk(k, largest=False).indices.numpy()

    guard = Guard(
        X[ITEMS], Y[ITEMS], model=embedder, held_out=HELD_OUT, search=nearest, precision=0.5
    )
    assert guard.index.rank_by == "mean"
    answers = guard.ask(X[NEW])
    assert (answers.label[answers.answered] == Y[NEW][answers.answered]).mean() > 0.5


def test_held_out_queries_of_the_training_are_told(trained):
    items = X[700:1100], Y[700:1100]
    with pytest.warns(FittedQueriesWarning, match="trained.*100%.*queries of held_out="):
        Guard(*items, model=trained, held_out=(X[ITEMS], Y[ITEMS]), precision=0.8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FittedQueriesWarning)
        Guard(X[ITEMS], Y[ITEMS], model=trained, held_out=HELD_OUT, precision=0.8)


def test_an_online_posterior_knows_its_training_also_when_it_is_read_again(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    loader = [(torch.from_numpy(X[:300]), torch.from_numpy(Y[:300]))]
    online, how = OnlineLaplace(model), {"epochs": 2, "progress": False}
    embedder = online.fit(loader, ContrastiveLoss(), checkpoint=tmp_path / "run", **how)
    embedder.save(tmp_path / "posterior")
    weights = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():  # as if it were in another process
        torch.nn.init.zeros_(parameter)
    fresh = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    finished = OnlineLaplace(fresh).fit(
        loader, ContrastiveLoss(), checkpoint=tmp_path / "run", **how
    )
    other = copy.deepcopy(fresh)
    other.load_state_dict(weights)
    for parameter in fresh.parameters():
        parameter.data += 0.0
    again = LaplaceEmbedder.load(tmp_path / "posterior", other)
    for each in (finished, again):
        with pytest.raises(InputError, match="model was trained.*100%.*items"):
            Guard(X[:300], Y[:300], model=each, trained_on_items=False)


def test_notes_of_a_training_go_with_its_model():
    from laplace_metric.models import _trained

    model = torch.nn.Linear(64, 4)
    data = [(torch.from_numpy(X[:50]), torch.from_numpy(Y[:50]))]
    train_embedder(model, data, ContrastiveLoss(), epochs=1, progress=False)
    noted = weakref.ref(_trained._TRAINED[model])
    assert not vars(model).keys() - vars(torch.nn.Linear(1, 1)).keys()
    del model
    gc.collect()
    assert noted() is None


def test_texts_and_mappings_and_parts_that_were_frozen():
    words = input_fingerprints(["one text", "another"])
    array = read_batch("inputs", np.array(["another", "one text"]))
    assert input_fingerprints(array).tolist() == words[::-1].tolist()
    ids = {"input_ids": torch.arange(6).view(2, 3), "mask": torch.ones(2, 3)}
    assert len(np.unique(input_fingerprints(ids))) == 2
    assert len(input_fingerprints(3.0)) == 0
    body, head = torch.nn.Linear(64, 16), torch.nn.Linear(16, 4)
    data = [(torch.from_numpy(X[:50]), torch.from_numpy(Y[:50]))]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    model = torch.nn.Sequential(body, head)
    train_embedder(model, data, ContrastiveLoss(), epochs=1, optimizer=optimizer, progress=False)
    assert trained_on(body) is None
    assert len(trained_on(model)) == 50
    train_embedder(head, [(torch.ones(2, 16), [0, 1])], ContrastiveLoss(), epochs=1, progress=False)
    assert len(trained_on(model)) == 51  # of both trainings


# A search that runs elsewhere.


def test_any_search_over_the_same_vectors():
    guard = Guard(X[ITEMS], Y[ITEMS], distance="arccos", precision=0.95)
    found = NearestNeighbors().fit(unit(X[ITEMS]))

    def search(queries, k):
        return found.kneighbors(queries, k)[1]

    other = Guard(X[ITEMS], Y[ITEMS], search=search, precision=0.95)
    assert other.ask(X[NEW]).label.tolist() == guard.ask(X[NEW]).label.tolist()
    held_out = {"held_out": (X[700:1100], Y[700:1100]), "open_set_fraction": 0.2}
    held_out["distance"] = "arccos"
    exact, graph = Guard(X[ITEMS], Y[ITEMS], **held_out), filled("HNSW", unit(X[ITEMS]))
    graph.hnsw.efSearch = 64

    def worst_first(queries, k):  # and one that is missing, which must not come first
        rows = graph.search(queries, k)[1][:, ::-1].copy()
        rows[:, 0] = np.where(k > 5, -1, rows[:, 0])
        return rows

    shuffled = Guard(X[ITEMS], Y[ITEMS], search=worst_first, **held_out)
    rows = shuffled.index.engine.search(shuffled.index.items.encoded.mean[:9], 8)
    assert rows[:, 0].tolist() == list(range(9))
    assert set(rows[:, -1].tolist()) == {-1}
    known = shuffled.calibration.known.mean()
    assert known == pytest.approx(0.8, abs=0.05)
    assert known == exact.calibration.known.mean()
    own = ~exact.calibration.known  # open-set queries find others by exact search
    gap = shuffled.calibration.probability[own] - exact.calibration.probability[own]
    assert np.abs(gap).max() < 2
    with pytest.raises(InputError, match="engine of yours"):
        other.index.add(X[:1], Y[:1], ids=[9000])


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        (lambda q, k: np.zeros((len(q), k)), "returned are float64"),
        (lambda q, k: np.zeros((len(q), k + 1), int), "200 rows of up to 11 ids: return 200 rows"),
        (lambda q, k: [[0]] * (len(q) + 1), "201 rows of up to 1 ids"),
        (lambda q, k: None, "returned a NoneType: return a list of ids for each query"),
        (lambda q, k: np.full((len(q), k), 700), r"\[700, 700, 700\], which no item has"),
        (lambda q, k: [["a"]] * len(q), "ids are numbers in the index and strings here"),
        (lambda q, k: np.zeros((len(q), k), int), r"more than once for one query, \[0\] among"),
        (lambda q, k: np.tile(np.arange(k), (len(q), 1)), "in the order in which"),
        (lambda q, k: np.full((len(q), k), -1), "in the order in which"),
    ],
)
def test_a_search_of_something_else_is_refused(search, problem):
    with pytest.raises(InputError, match=problem):
        Guard(X[:200], Y[:200], search=search)


def faiss_indexes():
    faiss = pytest.importorskip("faiss")
    return {
        "L2": faiss.IndexFlatL2(64),
        "inner product": faiss.IndexFlatIP(64),
        "HNSW": faiss.IndexHNSWFlat(64, 16),
        "IVF": faiss.IndexIVFFlat(faiss.IndexFlatL2(64), 64, 8),
        "ids": faiss.IndexIDMap(faiss.IndexFlatL2(64)),
        "PQ": faiss.IndexPQ(64, 16, 6),
    }


def filled(name, vectors):
    index = faiss_indexes()[name]
    if not index.is_trained:
        index.train(vectors)
    if name == "ids":
        index.add_with_ids(vectors, np.random.default_rng(0).permutation(len(vectors)) + 5)
    else:
        index.add(vectors)
    if name == "IVF":
        index.nprobe = 8
    return index


@pytest.mark.parametrize("name", ["L2", "inner product", "HNSW", "IVF", "ids", "PQ"])
@pytest.mark.parametrize("normalised", [True, False])
def test_a_faiss_index_as_it_is(name, normalised):
    items = unit(X[ITEMS]) if normalised else X[ITEMS]
    index = filled(name, items)
    if name == "inner product" and not normalised:
        with pytest.raises(InputError, match="inner product of.*vectors"):
            Guard.wrap(index, Y[ITEMS])
        return
    if name == "PQ":
        with pytest.raises(InputError, match=r"vectors="):
            Guard.wrap(index, Y[ITEMS])
    guard = Guard.wrap(index, Y[ITEMS], vectors=items if name == "PQ" else None)
    queries = unit(X[NEW]) if normalised else X[NEW]
    answers = guard.ask(queries)
    answered = answers.answered
    assert answered.mean() > 0.85
    assert (answers.label[answered] == Y[NEW][answered]).mean() >= 0.9
    noise = unit(NOISE) if normalised else NOISE
    assert guard.ask(noise).answered.mean() < 0.05
    alone = [guard.ask(queries[i : i + 1])[0].label for i in range(20)]
    assert alone == answers.label[:20].tolist()
    if name in ("L2", "inner product", "ids"):
        plain = Guard(items, Y[ITEMS], **({} if normalised else EUCLIDEAN))
        assert plain.ask(queries).label.tolist() == answers.label.tolist()


EUCLIDEAN = {"distance": "euclidean", "hessian": "positives"}


def test_labels_in_another_order_are_noticed_by_what_it_can_guarantee():
    index = filled("L2", X[ITEMS])
    with pytest.warns(FewQueriesWarning, match="cannot be guaranteed"):
        Guard.wrap(index, np.roll(Y[ITEMS], 1))


def test_a_faiss_index_that_has_changed_is_refused(tmp_path):
    index = filled("ids", unit(X[ITEMS]))
    guard = Guard.wrap(index, Y[ITEMS])
    guard.save(tmp_path / "guard")
    again = Guard.load(tmp_path / "guard", search=index)
    queries = unit(X[NEW])
    assert again.ask(queries).label.tolist() == guard.ask(queries).label.tolist()
    with pytest.raises(InputError, match="in the order"):
        Guard.load(tmp_path / "guard", search=filled("L2", unit(X[ITEMS])[::-1].copy()))
    index.add_with_ids(queries[:1], np.array([9_999]))
    with pytest.raises(InputError, match="holds 701.*knows 700"):
        guard.ask(queries)


def test_what_is_no_search_and_no_pair_is_named():
    with pytest.raises(InputError, match="search.*a str"):
        Guard(X[ITEMS], Y[ITEMS], search="flat")
    with pytest.raises(InputError, match=r"held_out.*a ndarray.*\(queries, labels\)"):
        Guard(X[ITEMS], Y[ITEMS], held_out=X[NEW])


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        ((X[NEW], Y[NEW][:10]), "10 entries for"),
        ((Y[NEW], X[NEW]), r"labels first: pass \(queries, labels\)"),
        ((X[NEW][:, :4], Y[NEW]), r"4 numbers each.*pass \[N, 64\]"),
        ((X[NEW] * np.nan, Y[NEW]), "NaN or infinity in rows 0, 1"),
        ((X[NEW], Y[NEW] + 0.5), "labels"),
    ],
)
@pytest.mark.parametrize("how", [{}, {"model": Precomputed(64), "head": "append"}])
def test_held_out_queries_that_cannot_be_read_are_named(held_out, said, how):
    with pytest.raises(InputError, match=f"^held_out.*{said}"):
        Guard(X[ITEMS], Y[ITEMS], held_out=held_out, **how)


@pytest.mark.parametrize("share", [20, 1, 1.0, -0.1, np.nan, "0.2", None, True])
def test_a_share_of_open_set_queries_outside_its_range_is_named_at_every_door(guard, share):
    held_out, embedder = (X[NEW], Y[NEW]), guard.embedder
    doors = [
        lambda **how: Guard(X[ITEMS], Y[ITEMS], **how),
        lambda **how: Guard(X[ITEMS], Y[ITEMS], held_out=held_out, **how),
        lambda **how: Guard.wrap(filled("L2", X[ITEMS]), Y[ITEMS], **how),
        lambda **how: guard.calibrate(*held_out, **how),
        lambda **how: guard.index.calibrate(*held_out, **how),
        lambda **how: guard.index.labelled_hits(*held_out, **how),
        lambda **how: embedder.cross_index(X[ITEMS], Y[ITEMS], **how),
    ]
    for door in doors:
        with pytest.raises(InputError, match=r"^open_set_fraction=.*number in.*\[0, 1\)"):
            door(open_set_fraction=share)


def test_vectors_of_another_shape_than_those_of_a_faiss_index_are_named():
    index = filled("PQ", X[ITEMS])
    for vectors in (X[ITEMS][:, :4], X[:100]):
        given = r"\[{}, {}\]".format(*vectors.shape)
        with pytest.raises(InputError, match=rf"vectors=.*shape {given}.*\[700, 64\]: pass"):
            Guard.wrap(index, Y[ITEMS], vectors=vectors)
    with pytest.raises(InputError, match="search.*vectors of 64 .*of 4"):
        Guard(X[ITEMS][:, :4], Y[ITEMS], search=index)
    with pytest.raises(InputError, match="index.*a str.*FAISS index"):
        Guard.wrap("index.faiss", Y[ITEMS], vectors=X[ITEMS])


@pytest.mark.parametrize("name", ["L2", "HNSW", "PQ", "ids"])
def test_a_faiss_index_without_vectors_is_empty(name):
    with pytest.raises(InputError, match=r"index is empty.*vectors"):
        Guard.wrap(faiss_indexes()[name], [])


def test_copies_among_the_items_are_told_once_at_the_line_that_asks():
    copies = np.concatenate([X[ITEMS], X[:100]]), np.concatenate([Y[ITEMS], Y[:100]])
    with pytest.warns(FittedQueriesWarning, match="12%.*items.*copies") as told:
        Guard(*copies)
    assert len(told) == 1
    assert told[0].filename == __file__


def test_near_copies_are_told_and_other_items_are_not():
    generator = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Guard(X[ITEMS], Y[ITEMS], precision=0.8)
        Guard(unit(X[ITEMS]), Y[ITEMS], precision=0.8)
        near = X[:100] + generator.normal(0, 0.3, (100, 64)).astype(np.float32)
        items, labels = np.concatenate([X[ITEMS], near]), np.concatenate([Y[ITEMS], Y[:100]])
        Guard(items, labels, precision=0.8, held_out=(X[NEW], Y[NEW]))
    with pytest.warns(FittedQueriesWarning, match="2[0-9]%.*items.*near-copies") as told:
        Guard(items, labels, precision=0.8)
    assert len(told) == 1
    assert told[0].filename == __file__


def test_some_of_the_answers(guard):
    answers = guard.ask(np.concatenate([X[NEW][:5], NOISE[:5]]))
    assert "5 of 10 queries are answered; 5 are unfamiliar, 0 uncertain" in repr(answers)
    for some in (slice(3, 7), [3, 4, 5, 6], np.arange(10) // 4 == 1):
        if not isinstance(some, np.ndarray):
            assert answers[some].label.tolist() == answers.label[3:7].tolist()
        else:
            assert answers[some].reason.tolist() == answers.reason[4:8].tolist()
    assert answers[answers.answered].answered.all()
    assert answers[-1] == answers[9]
    with pytest.raises(CallError, match=r"answers\['label'\]: .*read answers\.label"):
        answers["label"]
    assert answers[-1].reason == "unfamiliar"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((X[:2], [0, 1]), "2 items, 1 at most of one class, are too few"),
        ((X[:0], []), "pass at least one item"),
        ((X[:9],), r"labels=None: .*calibrate_scores"),
    ],
)
@pytest.mark.filterwarnings("ignore::laplace_metric.errors.DegenerateCurvatureWarning")
def test_too_little_is_named(given, problem):
    with pytest.raises(InputError, match=problem):
        Guard(*given)


# The distance.


def test_lengths_count_wherever_there_are_any():
    model = torch.nn.Linear(64, 16)
    for vectors, how, distance in (
        (X[ITEMS], {}, "euclidean"),
        (unit(X[ITEMS]), {}, "arccos"),
        (X[ITEMS], {"distance": "arccos"}, "arccos"),
        (X[ITEMS], {"model": model, "trained_on_items": False}, "arccos"),
    ):
        settings = Guard(vectors, Y[ITEMS], **how).embedder.settings
        assert settings.distance == distance
        assert settings.hessian == ("positives" if distance == "euclidean" else "fixed")


def test_rows_that_a_search_found_are_ordered_as_exact_search_orders_them():
    """By distance, ties by position; short lists end with -1; arrays, tensors and lists."""
    vectors, ids = torch.tensor([[0.0], [1.0], [-1.0], [3.0]]), Column.of("ids", [7, 5, 3, 9])
    for found in ([[9, 3, 5]], [np.array([9, 3, 5])], np.array([[9, 3, -1, 5]]), [[9, -1, 3, 5]]):
        engine = ForeignEngine(vectors, ids, lambda queries, k, found=found: found)
        assert engine.search(torch.zeros(1, 1), 4).tolist() == [[1, 2, 3, -1]]


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_a_search_shows_its_distance_by_what_it_finds(distance):
    metric = {"arccos": "cosine", "euclidean": "euclidean"}[distance]
    found, ids = NearestNeighbors(metric=metric).fit(X[ITEMS]), [f"item {i}" for i in range(700)]

    def search(queries, k):
        rows = found.kneighbors(queries, k)[1].tolist()
        return [[ids[row] for row in own[: k - 1] or own] for own in rows]  # fewer than k

    guard = Guard(X[ITEMS], Y[ITEMS], ids=ids, search=search)
    assert guard.embedder.settings.distance == distance
    assert guard.recall == pytest.approx(0.9)
    assert "  90% of the 10 nearest" in repr(guard)
    plain = Guard(X[ITEMS], Y[ITEMS], distance=distance)
    answers, wanted = guard.ask(X[NEW]), plain.ask(X[NEW])
    assert (answers.label == wanted.label).mean() > 0.99


def test_noise_in_a_familiar_direction_is_unfamiliar():
    x, y = load_wine(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    noise = np.random.default_rng(0).uniform(-4, 4, (400, 13)).astype(np.float32)
    shares = [
        float(Guard(x, y, precision=0.8, **how).ask(noise).answered.mean())
        for how in ({"distance": "arccos"}, {})
    ]
    assert shares[0] > 0.1
    assert shares[1] < 0.05


def test_an_engine_that_finds_little_is_calibrated_as_it_answers():
    """By exact search 63 % were to be answered, and 80 were."""
    faiss = pytest.importorskip("faiss")
    x = np.ascontiguousarray(X[:, 24:40])
    lists = faiss.index_factory(16, "IVF120,Flat")
    lists.train(x[:900])
    lists.add(x[:900])
    guard = Guard.wrap(lists, Y[:900], precision=0.9)
    assert guard.recall < 0.6
    answers = guard.ask(x[900:])
    answered = answers.answered
    assert (answers.label[answered] == Y[900:][answered]).mean() >= 0.9
    assert abs(answered.mean() - guard.rule.coverage) < 0.05


def test_an_inverted_file_stays_as_it_is_and_ids_of_its_own_are_refused():
    faiss = pytest.importorskip("faiss")
    index = filled("IVF", X[ITEMS])
    Guard.wrap(index, Y[ITEMS])
    assert index.direct_map.type == faiss.DirectMap.NoMap
    assert index.remove_ids(np.array([3])) == 1
    other = faiss.IndexIVFFlat(faiss.IndexFlatL2(64), 64, 8)
    other.train(X[ITEMS])
    other.add_with_ids(X[ITEMS], np.arange(700) + 1000)
    with pytest.raises(InputError, match="ids.*up to 1699.*700"):
        Guard.wrap(other, Y[ITEMS])


def test_an_argument_that_there_is_not_names_the_one_that_was_meant():
    with pytest.raises(TypeError, match=r"Guard\(\) got .*'heldout'.*mean 'held_out'\?"):
        Guard(X[:100], Y[:100], heldout=(X[100:], Y[100:]))


def test_what_is_proven_and_what_is_not_covered_is_said():
    told = [repr(Guard(X[:500], Y[:500], held_out=(X[500:n], Y[500:n]))) for n in (800, 1500)]
    assert "simulated, not proven" in told[0]
    assert "held-out queries: proven, but for the test" in told[1]
    assert all("not covered: pass open_set_fraction=" in each for each in told)
    some = Guard(X[:500], Y[:500], held_out=(X[500:800], Y[500:800]), open_set_fraction=0.2)
    assert "not covered" not in repr(some)


def test_what_rests_on_hidden_classes_is_not_proven(tmp_path):
    """Queries whose class was hidden are not queries of a new class, which may lie nearer."""
    old, known = Y[:500] < 8, Y[500:] < 8
    items, asked = (X[:500][old], Y[:500][old]), (X[500:], Y[500:])
    hidden = Guard(*items, held_out=(asked[0][known], asked[1][known]), open_set_fraction=0.2)
    real = Guard(*items, held_out=asked, open_set_fraction=0.1)
    assert "proven, but for the test" in repr(real)
    assert real.rule.proven
    hidden.save(tmp_path / "guard")
    for guard in (hidden, Guard.load(tmp_path / "guard")):
        assert "simulated, not proven" in repr(guard)
        assert re.search("(19|20|21)% of the queries, simulated", repr(guard))
        assert not guard.rule.proven
        assert not guard.index.guarantee(fpir=0.2).proven
        assert guard.index.guarantee(recall=0.8).proven  # asks queries with a match alone
    by_items = Guard(*items, open_set_fraction=0.2)
    assert "20% of the queries, simulated" in repr(by_items)
