"""The class model of a gallery: its optimum, its odds, and when an index asks it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import FileFormatError
from laplace_metric.evaluation import auroc
from laplace_metric.inputs._columns import Column
from laplace_metric.search import Index
from laplace_metric.search.classes import _class_model as module
from laplace_metric.search.classes import _class_weights as weights
from laplace_metric.search.classes._class_model import (
    LEAST_ODDS,
    MOST_ODDS,
    ClassModel,
    ClassPrior,
    cross_fitted,
)

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")


def points(n: int, n_classes: int, width: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(n_classes, width, generator=torch.Generator().manual_seed(9))
    y = torch.arange(n) % n_classes
    return 1.5 * centres[y] + torch.randn(n, width, generator=g), y


def names(n: int) -> Column:
    return Column(np.arange(n))


def whitened(x: Tensor, y: Tensor, new: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, class means and new rows where W + e I is the identity; class by class, in float64."""
    u, v = (torch.nn.functional.normalize(t.double()).numpy() for t in (x, new))
    labels = y.numpy()
    means = np.stack([u[labels == c].mean(0) for c in np.unique(labels)])
    gaps = u - means[labels]
    within = gaps.T @ gaps / (len(u) - len(means))
    ridge = np.trace(within) / len(within)
    root = np.linalg.inv(np.linalg.cholesky(within + ridge * np.eye(len(within)))).T
    return tuple((t - u.mean(0)) @ root for t in (u, means, v))  # type: ignore[return-value]


def odds_of(scores: np.ndarray, variance: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Odds of MacKay's moderated output of scores with these variances."""
    scores = (scores - scores.max(1, keepdims=True)) / np.sqrt(1 + np.pi * variance / 8)
    p = np.exp(scores / temperature)
    p /= p.sum(1, keepdims=True)
    return np.log(p / (1 - p)).clip(LEAST_ODDS, MOST_ODDS)


def every(n: int, n_classes: int) -> Tensor:
    return torch.arange(n_classes).expand(n, n_classes)


@pytest.mark.parametrize("counts", [(30, 30, 30), (60, 5, 2)])
def test_few_items_a_class_are_linear_discriminant_analysis(counts, monkeypatch):
    monkeypatch.setattr(module, "LEAST", 10**6)
    y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    x, new = points(90, 3)[0][: len(y)] + 3 * y[:, None], points(20, 3, seed=1)[0]
    model = ClassModel.fit(x, y, names(3))
    _, means, v = whitened(x, y, new)
    scores = v @ means.T - (means**2).sum(1) / 2 + np.log(np.array(counts) / sum(counts))
    # the mean of n items of unit covariance varies by I / n, and so -|x - m|^2 / 2 by |x - m|^2 / n
    variance = ((v[:, None] - means) ** 2).sum(2) / np.array(counts)
    found = model.log_odds(new, every(20, 3)).numpy()
    np.testing.assert_allclose(found, odds_of(scores, variance), rtol=1e-3, atol=1e-3)
    assert model.prior == ClassPrior(0, 1)


@pytest.mark.parametrize("precision", [1.0, 30.0])
@pytest.mark.parametrize("n_classes", [2, 5])
def test_it_is_logistic_regression_in_whitened_coordinates(precision, n_classes, monkeypatch):
    monkeypatch.setattr(weights, "ITERATIONS", 1000)
    monkeypatch.setattr(weights, "TOLERANCE", 1e-12)
    monkeypatch.setattr(weights, "CORE_LOGIT_BYTES", 400)  # in blocks of 50 or 20 of the 300 rows
    (x, y), (new, _) = points(300, n_classes), points(50, n_classes, seed=1)
    model = ClassModel.fit(x, y, names(n_classes), precision, 1.5)
    u, _, v = whitened(x, y, new)
    target = np.eye(n_classes)[y.numpy()]

    def loss(flat: np.ndarray) -> float:
        w = flat.reshape(n_classes, -1)
        scores = u @ w[:, :-1].T + w[:, -1]
        top = scores.max(1)
        total = np.log(np.exp(scores - top[:, None]).sum(1)) + top
        return (total - (scores * target).sum(1)).sum() + precision / 2 * (w[:, :-1] ** 2).sum()

    best = minimize(loss, np.zeros(n_classes * 7), method="BFGS").x.reshape(n_classes, -1)
    scores = u @ best[:, :-1].T + best[:, -1]
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    variance = v**2 @ (1 / ((p * (1 - p)).T @ u**2 + precision)).T
    expected = odds_of(v @ best[:, :-1].T + best[:, -1], variance, 1.5)
    np.testing.assert_allclose(model.log_odds(new, every(50, n_classes)), expected, atol=0.05)
    skl = LogisticRegression(C=1 / precision, max_iter=5000, tol=1e-8).fit(u, y.numpy())
    if n_classes > 2:  # scikit-learn's two classes share one vector of weights
        theirs = odds_of(skl.decision_function(v), variance, 1.5)
        np.testing.assert_allclose(model.log_odds(new, every(50, n_classes)), theirs, atol=0.05)


def test_the_precision_is_the_one_of_a_held_out_fifth():
    """Labels at random have nothing to teach: the strongest; clear ones a weaker one."""
    x, y = points(400, 4)
    noise = torch.randint(0, 4, (400,), generator=torch.Generator().manual_seed(3))
    assert float(ClassModel.fit(x, noise, names(4)).prior_precision) == weights.PRECISIONS[0]
    assert float(ClassModel.fit(4 * x, y, names(4)).prior_precision) < weights.PRECISIONS[1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_classes_of_one_item_do_not_choose_the_precision(seed):
    """The one in the held-out fifth has a class that no fit has seen: it would ask for no fit."""
    g = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(120) % 3, 3 + torch.arange(20)])
    x = 1.2 * torch.randn(23, 6, generator=g)[y] + torch.randn(140, 6, generator=g)
    assert len(y) >= module.LEAST * 23
    weak = float(ClassModel.fit(x[:120], y[:120], names(3)).prior_precision)
    assert (
        float(ClassModel.fit(x, y, names(23)).prior_precision) <= 10 * weak < weights.PRECISIONS[0]
    )
    alone = torch.arange(20)  # each held-out item has a class of its own: nothing to choose by
    origin, held = torch.zeros(20, 7), weights.held_out(20)
    assert weights.choose(x[120:], alone, held, origin) == (weights.UNTOLD, 1.0, origin)
    assert weights.choose(x[120:], alone, held, origin, 3.0) == (3.0, 1.0, origin)


def test_held_out_items_choose_in_coordinates_that_they_do_not_know(monkeypatch):
    """With W of all items, they are nearer to their class than any query will be."""
    seen = []
    choose = weights.choose
    monkeypatch.setattr(module, "choose", lambda *a: seen.append(a) or choose(*a))
    x, y = points(120, 3)
    x[5] = 0  # has no direction, so that no scatter counts it
    ClassModel.fit(x, y, names(3))
    ((found, _, held, *_),) = seen
    drawn = weights.held_out(120)
    others = ~drawn
    others[5] = False
    _, _, v = whitened(x[others], y[others], x)
    np.testing.assert_allclose(found, np.concatenate([v[~drawn], v[drawn]]), atol=1e-3)
    assert held.tolist() == sorted(drawn.tolist())  # they come last
    assert held.sum() == 24


def test_queries_find_the_temperature_that_held_out_items_chose():
    """Of features as wide as there are items, where coordinates of all would be too certain."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(1200) % 6
    x = torch.randn(6, 200, generator=g)[y] / 4 + torch.randn(1200, 200, generator=g)
    model = ClassModel.fit(x[:300], y[:300], names(6))
    logits, variance = model._logits(x[300:])
    losses = {
        t: -float(weights.moderated(logits, variance, t).gather(1, y[300:, None]).mean())
        for t in np.geomspace(0.1, 10, 41)
    }
    best = min(losses, key=losses.get)
    assert best / 1.5 < float(model.temperature) < best * 1.5


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_odds_are_finite_and_of_the_classes_that_are_there(data):
    n_classes, width = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 8))
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=n_classes, max_size=n_classes))
    y = torch.repeat_interleave(torch.arange(n_classes), torch.tensor(sizes))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    x = torch.randn(len(y), width, generator=g) * 10.0 ** data.draw(st.integers(-6, 6))
    if data.draw(st.booleans()):
        x = x.round()  # duplicates, and zeros
    model = ClassModel.fit(x, y, names(n_classes))
    if model is None:
        return
    odds = model.log_odds(x, every(len(x), n_classes))
    assert bool(odds.isfinite().all())
    assert bool(((odds >= LEAST_ODDS) & (odds <= MOST_ODDS)).all())
    own = data.draw(st.integers(0, n_classes - 1))
    without = model.log_odds(x, every(len(x), n_classes), torch.full((len(x),), own))
    assert bool((without[:, own] == LEAST_ODDS).all())
    for values, sure in ((odds, odds == MOST_ODDS), (without, without == MOST_ODDS)):
        p = values.sigmoid().sum(1)[~sure.any(1)]
        assert torch.allclose(p, torch.ones_like(p), atol=1e-6)


def test_nothing_to_learn():
    x, y = points(60, 3)
    assert ClassModel.fit(x, torch.zeros(60, dtype=torch.long), names(1)) is None
    assert ClassModel.fit(torch.ones(60, 4), y, names(3)) is None


def test_classes_that_came_later():
    x, y = points(120, 4)
    rows = y != 2
    model = ClassModel.fit(x[rows], y[rows], names(4))
    assert model.classes.values.tolist() == [0, 1, 3]
    found = model.evidence(x[:5], np.array([[0, 2, 3, -1]] * 5), names(4))
    same = model.log_odds(x[:5], torch.tensor([[0, 2]] * 5))
    np.testing.assert_allclose(found[:, [0, 2]], same)
    np.testing.assert_allclose(found[:, 1], -np.log(3))  # one of four, as likely as any
    assert not found[:, 3].any()


def test_an_item_is_asked_of_models_that_did_not_see_it():
    x, y = points(200, 4)
    wrong = y.clone()
    wrong[:10] = (y[:10] + 1) % 4
    models, fold = cross_fitted(x, wrong, names(4), ClassPrior(1.0, 2.0))
    rest = ClassModel.fit(x[fold != 2], wrong[fold != 2], names(4), 1.0, 2.0)
    assert torch.equal(rest.weights, models[2].weights)
    assert models[2].prior == (1, 2)
    assert (np.bincount(fold, minlength=5) == 40).all()


def built(labels=None, **how) -> tuple[Index, Tensor, Tensor]:
    x, y = points(900, 6)
    values = y.numpy() if labels is None else labels[y.numpy()]
    embedder = LaplaceEmbedder.from_embeddings(x[:200], y[:200], distance="arccos")
    index = embedder.index(x[:300], values[:300], progress=False)
    index.calibrate(x[300:600], values[300:600], **how)
    return index, x, y


def test_an_index_asks_it():
    index, x, _ = built()
    assert "class_model" in index.calibration.looks_at
    hits = index.search(x[600:], 20).hits
    expected = index.class_model.evidence(
        index.encoder(x[600:]).basis_inputs, hits.votes.labels, index.items.classes
    )
    np.testing.assert_allclose(hits.votes.class_odds, expected)
    one = index.search(x[600:601], 20)
    both = index.search(x[600:], 20)
    torch.testing.assert_close(one.match_probability[0], both.match_probability[0])


def test_it_is_worth_something_and_stays_out_of_what_others_apply():
    index, x, y = built()
    portable, _, _ = built(portable=True)
    found, less = index.search(x[600:], 1), portable.search(x[600:], 1)
    right = np.asarray(found.labels[:, 0]) == y[600:].numpy()
    p, q = found.match_probability[:, 0].numpy(), less.match_probability[:, 0].numpy()
    assert auroc(-p[right], -p[~right]) > auroc(-q[right], -q[~right]) + 0.01
    answers = [np.mean(np.asarray(r.label) == y[600:].numpy()) for r in (found, less)]
    assert answers[0] > answers[1]
    assert portable.class_model is None
    assert float(portable.calibration.labeller.numbers[2]) == 0


def test_queries_that_pretend_are_not_told_by_their_own_class():
    x, y = points(900, 6)
    index = LaplaceEmbedder.from_embeddings(x[:200], y[:200], distance="arccos").index(
        x[:300], y[:300]
    )
    index.learn_classes()
    asked = index.labelled_hits(x[300:600], y[300:600], 20, open_set_fraction=0.4, seed=0)
    none = ~asked.known
    assert none.sum() == 120
    rows = torch.from_numpy(none).nonzero().flatten() + 300
    others = index.class_model.evidence(
        index.encoder(x[rows]).basis_inputs,
        asked.hits.votes.labels[none],
        index.items.classes,
        y[rows].numpy(),
    )
    np.testing.assert_allclose(asked.hits.votes.class_odds[none], others, atol=1e-5)
    assert asked.hits.votes.class_odds[none].max(1).mean() > 1  # one of them is likely


@pytest.mark.parametrize("labels", [None, np.array(list("qwerty"), dtype=object)])
def test_it_is_saved_with_the_index(tmp_path, labels):
    index, x, _ = built(labels)
    index.save(tmp_path / "index")
    x_fit, y_fit = points(900, 6)
    embedder = LaplaceEmbedder.from_embeddings(x_fit[:200], y_fit[:200], distance="arccos")
    again = Index.load(tmp_path / "index", embedder)
    assert again.class_model.classes.values.tolist() == index.class_model.classes.values.tolist()
    theirs = again.class_model.tensors()
    for name, tensor in index.class_model.tensors().items():
        assert torch.equal(tensor, theirs[name])
    found = [i.search(x[600:]).match_probability for i in (index, again)]
    assert torch.equal(*found)
    assert again.search(x[600:]).label.tolist() == index.search(x[600:]).label.tolist()


def test_tensors_that_do_not_fit_are_refused():
    model = ClassModel.fit(*points(60, 3), names(3))
    tensors = model.tensors()
    for name in ("bias", "root", "classes", "variance"):
        with pytest.raises(FileFormatError, match=r"class_model/\w+ has shape"):
            ClassModel.from_tensors({**tensors, name: tensors[name][:2]})


def test_what_comes_and_goes_keeps_it_until_it_is_calibrated_again():
    index, x, y = built()
    before = index.class_model
    index.add(x[600:620], (y[600:620] + 3).numpy())  # classes 6 to 8 are new
    assert index.class_model is before
    found = index.search(x[620:])
    assert bool(found.match_probability.isfinite().all())
    index.calibrate(x[300:600], y[300:600].numpy())
    assert index.class_model is not before
    assert 8 in index.class_model.classes.values


def test_wrong_labels_are_found_though_the_model_has_learnt_them():
    x, y = points(600, 4)
    y = y.clone()
    y[:12] = (y[:12] + 1) % 4
    embedder = LaplaceEmbedder.from_embeddings(2 * x, y, distance="arccos")
    index = embedder.cross_index(2 * x, y, progress=False)
    assert index.class_model is not None
    assert np.isin(index.suspicious_labels(24).ids, np.arange(12)).sum() >= 8


def test_a_part_of_a_large_gallery(monkeypatch):
    x, y = points(600, 4)
    whole = ClassModel.fit(x, y, names(4), 10.0)
    monkeypatch.setattr(module, "CELLS", 4 * 6 * 100)
    part = ClassModel.fit(x, y, names(4), 10.0)
    torch.testing.assert_close(part.root, whole.root)  # of all items
    assert not torch.equal(part.weights, whole.weights)
    monkeypatch.setattr(module, "CELLS", 4 * 6 * 10)
    assert float(ClassModel.fit(x, y, names(4)).prior_precision) == 0


def test_blocks_of_rows_change_nothing(monkeypatch):
    (x, y), (new, _) = points(300, 4), points(70, 4, seed=1)
    whole = ClassModel.fit(x, y, names(4), 10.0)
    monkeypatch.setattr(module, "LARGE_BYTES", 4 * 6 * 7)
    monkeypatch.setattr(weights, "CORE_LOGIT_BYTES", 4 * 4 * 7)
    parts = ClassModel.fit(x, y, names(4), 10.0)
    torch.testing.assert_close(parts.root, whole.root)
    found = [model.log_odds(new, every(70, 4)) for model in (whole, parts)]
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)
    assert whole.log_odds(new[:0], every(0, 4)).shape == (0, 4)


def test_folds_have_the_prior_of_the_whole(monkeypatch):
    asked = []
    fit = ClassModel.fit.__func__

    def spy(cls, rows, codes, classes, *prior):
        model = fit(cls, rows, codes, classes, *prior)
        asked.append((len(rows), prior[:2], model.prior))
        return model

    monkeypatch.setattr(ClassModel, "fit", classmethod(spy))
    x, y = points(120, 6)
    embedder = LaplaceEmbedder.from_embeddings(x, y, distance="arccos")
    index = embedder.cross_index(x, y, folds=4, progress=False)
    assert index.class_model is not None
    (_, none, chosen), *folds = asked
    assert none == (None, None)
    assert folds == [(90, chosen, chosen)] * 4


def test_small_classes_have_no_class_model_in_folds():
    x, y = points(54, 6)
    index = LaplaceEmbedder.from_embeddings(x, y, distance="arccos").cross_index(
        x, y, progress=False
    )
    assert index.class_model is None
    assert "class_model" not in index.calibration.looks_at


@pytest.mark.parametrize("n", [60, 400])
def test_rows_of_a_subspace_have_the_model_of_the_whole_space(n):
    """The ridge averages over all coordinates, those without a number, too."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.randn(3, 5, generator=g)[y] + torch.randn(n, 5, generator=g)
    whole = torch.cat([x.new_zeros(n, 15), x], 1)
    classes = Column(np.arange(3))
    part, wide = ClassModel.fit(x, y, classes, width=20), ClassModel.fit(whole, y, classes)
    expected = wide.log_odds(whole, y[:, None])
    torch.testing.assert_close(part.log_odds(x, y[:, None]), expected, rtol=1e-4, atol=1e-4)
    other = ClassModel.fit(x, y, classes).log_odds(x, y[:, None])
    assert (other - expected).abs().max() > 0.01
