"""Cross-fitting: what is calibrated, that no query was in its fit, and that promises are kept."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laplace_metric import LaplaceEmbedder, datasets
from laplace_metric.calibration import (
    read_calibration,
    write_calibration,
)
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.errors import FittedQueriesWarning, InputError, LabelError
from laplace_metric.heads._repeatable import ROWS
from laplace_metric.inputs._columns import Column
from laplace_metric.models import Precomputed
from laplace_metric.search import Flat, Index, Predictive, _cross_fit, _refit
from laplace_metric.search.classes._class_model import ClassPrior
from laplace_metric.search.engines._engine import FlatEngine

N = 120


@pytest.fixture(scope="module")
def items():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 6
    return 1.5 * torch.nn.functional.one_hot(y, 8) + 0.6 * torch.randn(N, 8, generator=g), y


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5))


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60), st.integers(2, 7), st.integers(0, 9))
def test_folds_are_of_one_size_and_so_are_their_classes(labels, folds, seed):
    codes = torch.tensor(labels)
    fold = _cross_fit.folds_of(codes, folds, torch.Generator().manual_seed(seed)).tolist()
    sizes = [fold.count(f) for f in range(folds)]
    assert max(sizes) - min(sizes) <= 1
    for c in set(labels):
        counts = Counter(f for f, label in zip(fold, labels, strict=True) if label == c)
        of_class = [counts.get(f, 0) for f in range(folds)]
        assert max(of_class) - min(of_class) <= 1


@pytest.mark.parametrize("rank_by", ["mean", Predictive(0.5, 3)], ids=["mean", "predictive"])
@pytest.mark.parametrize("head", [None, "append", "normalised"])
def test_each_fold_is_asked_of_a_fit_and_an_index_without_it(head, rank_by, items, model):
    """Against folds by hand: an embedder of its own for each, on the model itself."""
    x, y = items
    names = [f"class {c}" for c in y.tolist()]
    if head == "normalised":
        model, head = torch.nn.Sequential(model, _refit._Directions()), None
    how = {"head": head, "distance": "arccos", "structure": "kron", "prior_precision": 3.0}
    embedder = LaplaceEmbedder(model, **how).fit([(x, y)], progress=False)
    features = embedder.activations(x).features
    labels = Column.of("labels", names)
    fold = _cross_fit.folds_of(y, 4, torch.Generator().manual_seed(0))
    found = _cross_fit.cross_labelled_hits(embedder, features, labels, fold, 30, rank_by=rank_by)
    assert len(found) == N
    for f in range(4):
        ours, others = fold == f, fold != f
        of_all = {"temperature": embedder.posterior_.temperature}
        one = LaplaceEmbedder(model, **how, **of_all).fit([(x[others], y[others])], progress=False)
        named = [n for n, o in zip(names, others, strict=True) if o]
        index = one.index(x[others], named, rank_by=rank_by, progress=False)
        wanted = index.labelled_hits(
            x[ours], [n for n, o in zip(names, ours, strict=True) if o], 30
        )
        mine = found.take(ours.numpy())
        rows = others.nonzero().flatten().numpy()
        assert np.array_equal(mine.hits.positions, rows[wanted.hits.positions])
        assert np.array_equal(mine.match, wanted.match)
        assert np.array_equal(mine.codes, y[ours])
        assert np.array_equal(mine.hits.votes.labels, y[mine.hits.positions])
        for ours_, theirs in (
            (mine.hits.distance, wanted.hits.distance),
            (mine.hits.distance_sd, wanted.hits.distance_sd),
            (mine.hits.uncertainty, wanted.hits.uncertainty),
            (mine.hits.epistemic, wanted.hits.epistemic),
            (mine.hits.votes.weighted, wanted.hits.votes.weighted),
            (mine.hits.votes.ambiguity, wanted.hits.votes.ambiguity),
        ):
            torch.testing.assert_close(ours_, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_folds_of_fewer_items_than_head_inputs_are_as_if_fitted_to_all_inputs(
    distance, bias, monkeypatch
):
    """In float64, against fits to all coordinates, where the items span 60 of 90."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 4
    x = torch.randn(4, 90, generator=g)[y] + torch.randn(60, 90, generator=g)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(90, 5, bias=bias)).double()
    embedder = LaplaceEmbedder(model, distance=distance, structure="kron", hessian="positives")
    embedder.fit([(x.double(), y)], progress=False)
    given = embedder, x.double(), Column.of("labels", y.tolist())
    fold, widths = _cross_fit.folds_of(y, 4, torch.Generator().manual_seed(0)), list[int]()
    fit = _refit.fit_posterior

    def noted(*arguments):
        fitted = fit(*arguments)
        widths.append(fitted.jacobian.layouts[0].n_features)
        return fitted

    monkeypatch.setattr(_refit, "fit_posterior", noted)
    prior = ClassPrior(2.0, 1.5)
    found = _cross_fit.cross_labelled_hits(*given, fold, 20, class_prior=prior)
    _cross_fit.cross_labelled_hits(*given, fold, 20, rank_by=Predictive(0.5, 3))
    monkeypatch.setattr(_refit, "_follows_rotations", lambda fitted: False)
    wanted = _cross_fit.cross_labelled_hits(*given, fold, 20, class_prior=prior)
    assert widths == [60] * 4 + [90] * 8  # predictive vectors are of all inputs
    assert np.array_equal(found.hits.positions, wanted.hits.positions)
    for name in ("distance", "distance_sd", "uncertainty", "epistemic"):
        pair = getattr(found.hits, name), getattr(wanted.hits, name)
        np.testing.assert_allclose(*pair, rtol=1e-7, err_msg=name)
    # in directions without curvature the basis is arbitrary, and with it the weights' variances
    odds = [hits.voted.class_odds.flatten() for hits in (found.hits, wanted.hits)]
    assert np.corrcoef(odds)[0, 1] > 0.97


def test_an_engine_over_all_items_finds_those_outside_a_fold(items, model):
    x, y = items
    embedder = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    given = embedder.activations(x).features, Column.of("labels", y.tolist())
    fold = _cross_fit.folds_of(y, 4, torch.Generator().manual_seed(0))
    exact = FlatEngine(embedder(x).mean, Flat())
    found = _cross_fit.cross_labelled_hits(embedder, *given, fold, 10, engine=exact)
    wanted = _cross_fit.cross_labelled_hits(embedder, *given, fold, 10)
    assert np.array_equal(found.hits.positions, wanted.hits.positions)
    assert np.array_equal(found.match, wanted.match)


def test_classes_that_a_fold_lacks_have_the_codes_of_all(items, model):
    """A class of one member is a query without a match; codes are those of all classes."""
    x, y = items
    names = ["a", *(f"b{c}" for c in y[1:].tolist())]
    embedder = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    labels = Column.of("labels", names)
    fold = torch.arange(N) % 5
    found = _cross_fit.cross_labelled_hits(
        embedder, embedder.activations(x).features, labels, fold, 20
    )
    classes = list(found.classes)
    assert classes == sorted(set(names))
    assert found.known.tolist() == [False, *[True] * (N - 1)]
    neighbours = np.array(names)[found.hits.positions]
    assert np.array_equal(found.classes[found.hits.votes.labels], neighbours)
    wanted = [-1, *(classes.index(n) for n in names[1:])]
    assert found.codes.tolist() == wanted


def test_one_call_fits_indexes_and_calibrates(items, model):
    x, y = items
    names = [f"class {c}" for c in y.tolist()]
    embedder = LaplaceEmbedder(model, prior_precision=2.0)
    index = embedder.cross_index(x, names, ids=range(1000, 1000 + N), progress=False)
    fitted = LaplaceEmbedder(model, prior_precision=2.0).fit([(x, y)], progress=False)
    torch.testing.assert_close(embedder.posterior_.spectrum, fitted.posterior_.spectrum)
    assert list(index.ids) == list(range(1000, 1000 + N))
    assert list(index.labels) == names
    assert index.encoder.identity == fitted.index(x, progress=False).encoder.identity
    calibration = index.calibration
    assert (len(calibration.statistics), calibration.n_items, calibration.k) == (N, N, 10)
    assert calibration.depth == 50
    assert index.changes == 0
    again = fitted.cross_index([(x[:50], y[:50]), (x[50:], y[50:])], progress=False)
    assert np.array_equal(again.calibration.first_match, calibration.first_match)
    other = fitted.cross_index(x, y, seed=1, progress=False)
    assert not np.array_equal(other.calibration.first_match, calibration.first_match)
    fewer = fitted.cross_index(x, y, folds=2, k=3, depth=90, progress=False).calibration
    assert (fewer.depth, fewer.k) == (60, 3)


@pytest.mark.parametrize("fitted", [False, True])
def test_the_model_runs_once_over_the_items(fitted, items, model):
    x, y = items
    embedder = LaplaceEmbedder(model)
    if fitted:
        embedder.fit([(x, y)], progress=False)
    rows = []
    handle = model[0].register_forward_hook(lambda m, args, out: rows.append(len(out)))
    index = embedder.cross_index([(x[:50], y[:50]), (x[50:], y[50:])], folds=10, progress=False)
    handle.remove()
    assert sum(rows) == N + (0 if fitted else 3 * ROWS)  # a fit runs a few of them again
    built = embedder.index([x[:50], x[50:]], y, progress=False)
    assert np.array_equal(index.items.encoded.mean, built.items.encoded.mean)
    assert np.array_equal(index.items.encoded.trace, built.items.encoded.trace)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"folds": 1}, "folds=1"),
        ({"folds": N + 1}, rf"^{N} items, 20 at most of one class, .* folds={N + 1}"),
        ({"k": 0}, "k=0"),
        ({"depth": 0}, "depth=0"),
        ({"rank_by": "luck"}, "rank_by='luck'"),
    ],
)
def test_what_cannot_be(how, message, items, model):
    x, y = items
    with pytest.raises(InputError, match=message):
        LaplaceEmbedder(model).cross_index(x, y, progress=False, **how)


def test_no_items_are_refused(items, model):
    embedder = LaplaceEmbedder(model).fit([items], progress=False)
    with pytest.raises(InputError, match="^0 items, 0"):
        embedder.cross_index([], torch.zeros(0).long(), progress=False)


def test_a_loader_with_fewer_inputs_than_labels_is_refused(items, model):
    x, y = items
    embedder = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    with pytest.raises(LabelError, match=rf"{N - 4} items.*{N} labels"):
        embedder.cross_index([(x[:5], y[:5]), (x[5:9], y[5:13]), (x[13:], y[13:])], progress=False)


def test_a_posterior_of_other_items_is_refused(items, model):
    x, y = items
    embedder = LaplaceEmbedder(model).fit([(x[:90], y[:90])], progress=False)
    with pytest.raises(InputError, match="25%.*not.*the fit"):
        embedder.cross_index(x, y, progress=False)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("sizes", "refused"),
    [
        ({2: 6}, "6 of 6 classes have only two items.*12 of 12"),
        ({2: 1, 3: 1}, "1 of 2 classes has only two items.*needs three or more.*Add items"),
        ({1: 90, 2: 6}, "6 of 96 classes have only two items.*12 of 12"),
        ({2: 5, 3: 9}, "5 of 14 classes have only two items.*10 of 37"),
        ({2: 5, 3: 10}, None),
        ({1: 30, 3: 10}, None),
    ],
)
def test_collections_of_pairs_are_refused(sizes, refused):
    """At most a quarter of the items with another one of their class; others do not count."""
    items = torch.tensor([n for n, classes in sizes.items() for _ in range(classes)])
    y = torch.arange(len(items)).repeat_interleave(items)
    x = torch.randn(len(items), 8, generator=torch.Generator().manual_seed(0))[y]
    x = x + 0.3 * torch.randn(len(y), 8, generator=torch.Generator().manual_seed(1))
    embedder = LaplaceEmbedder(Precomputed(8), head="append")
    if refused is None:
        assert embedder.cross_index(x, y, progress=False).calibration.cross_fitted
        return
    with pytest.raises(InputError, match=refused):
        embedder.cross_index(x, y, progress=False)


@pytest.mark.usefixtures("quick")
def test_everything_that_a_cross_fitted_calibration_gives_says_so(items, model, tmp_path):
    """A guarantee of queries that were held out, and one of the items, must not look alike."""
    x, y = items
    embedder = LaplaceEmbedder(model)
    index = embedder.cross_index(x, y, progress=False)
    calibration = index.calibration
    assert calibration.cross_fitted
    index.save(tmp_path / "index")
    assert Index.load(tmp_path / "index", embedder).calibration.cross_fitted
    write_calibration(calibration, tmp_path / "calibration.safetensors")
    assert read_calibration(tmp_path / "calibration.safetensors").cross_fitted
    assert "120 cross-fitted queries" in repr(calibration)
    for threshold in (calibration.guarantee(recall=0.5), calibration.largest_guarantee()):
        assert not threshold.proven
        assert "on 120 cross-fitted queries" in str(threshold)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FittedQueriesWarning)
        report = index.evaluate(x, y)
        held_out = index.calibrate(x, y, cross_fit=0)
    assert report.to_json()["cross_fitted"] is True
    assert "calibrated by" in str(report)
    assert not held_out.cross_fitted
    assert "on 60 held-out queries" in str(held_out.guarantee(recall=0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FittedQueriesWarning)
        assert "calibrated by" not in str(index.evaluate(x, y))


CLASSES, SIZE, FEW = 10, 32, 240


def world(seed: int):
    """Few items of a world in which many more can be drawn."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, SIZE, generator=g)
    y = torch.arange(FEW + 1500) % CLASSES
    x = centres[y] + 1.4 * torch.randn(len(y), SIZE, generator=g)
    return (x[:FEW], y[:FEW]), (x[FEW:], y[FEW:])


def on_new_queries(index: Index, new: LabelledHits) -> dict[str, float]:
    """What was promised on average, and what came."""
    calibration, right = index.calibration, new.match[:, 0]
    assessment = calibration.assess(new.hits)
    p = assessment.match_probability[:, 0]
    accepted = p >= calibration.guarantee(precision=0.8, of="match").value
    accepted &= assessment.p_value > 0.05
    members = calibration.members(assessment.logit, 0.1)
    return {
        "gap": float((p - right).mean()),
        "unknown": float((assessment.p_value <= 0.1).mean()),
        "precision": float(right[accepted].mean()),
        "covered": float((members & new.match).any(1).mean()),
    }


@pytest.mark.usefixtures("quick")
def test_promises_hold_on_new_queries_and_not_by_fitted_items():
    """Ten small collections; beside them the calibration by items that were fitted."""
    runs, crossed, invalid = 10, [], []
    for seed in range(runs):
        (x, y), (new_x, new_y) = world(seed)
        embedder = LaplaceEmbedder(Precomputed(SIZE), head="append")
        index = embedder.cross_index(x, y, seed=seed, progress=False)
        crossed.append(on_new_queries(index, index.labelled_hits(new_x, new_y, 50)))
        few = LaplaceEmbedder(Precomputed(SIZE), head="append")
        part = few.fit([(x[:100], y[:100])], progress=False).index(x[100:], y[100:], progress=False)
        with pytest.warns(FittedQueriesWarning):
            part.learn(part.labelled_hits(x[:100], y[:100], 50), 10, seed)
        new = part.labelled_hits(new_x, new_y, 50).hits
        invalid.append(float((part.calibration.assess(new).p_value <= 0.1).mean()))
    mean = {name: np.mean([row[name] for row in crossed]) for name in crossed[0]}
    error = {
        name: 3 * np.std([row[name] for row in crossed], ddof=1) / runs**0.5 for name in crossed[0]
    }
    assert abs(mean["gap"]) < 0.02 + error["gap"], (mean, error)
    assert 0.05 < mean["unknown"] < 0.1 + error["unknown"], (mean, error)
    assert mean["precision"] > 0.8 - error["precision"], (mean, error)
    assert mean["covered"] > 0.9 - error["covered"], (mean, error)
    # a hundred fitted points are nearer to their own statistics than new ones are
    more = np.array(invalid) - [row["unknown"] for row in crossed]
    assert more.mean() > 3 * more.std(ddof=1) / runs**0.5, more


def test_promises_hold_on_real_images_that_nothing_has_seen():
    """400 handwritten digits are all there is; the other 1,397 are new."""
    parts = [datasets.load("digits", split) for split in ("train", "test")]
    x = torch.cat([part.pixels(slice(None)) for part in parts]).flatten(1)
    y = torch.cat([part.labels for part in parts])
    said, right, unknown, kept = [], [], [], []
    for seed in range(3):
        rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        own, new = rows[:400], rows[400:]
        embedder = LaplaceEmbedder(Precomputed(64), head="append")
        index = embedder.cross_index(x[own], y[own], seed=seed, progress=False)
        result = index.search(x[new], k=1)
        match = torch.from_numpy(result.labels[:, 0]) == y[new]
        accepted = index.guarantee(precision=0.95, of="match")(result).answered
        said.append(result.match_probability[:, 0].mean())
        right.append(match.double().mean())
        unknown.append(result.unknown.double().mean())
        kept.append(match[accepted].double().mean())
    mean = [float(torch.stack(numbers).mean()) for numbers in (said, right, unknown, kept)]
    assert mean[0] == pytest.approx(mean[1], abs=0.02)
    assert mean[2] < 0.05 + 0.015
    assert mean[3] > 0.95


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("folds", "share"), [(60, 0.2), (60, 0.4), (20, 0.1), (7, 0.5)])
def test_small_folds_draw_as_many_in_all(folds, share):
    (x, y), _ = world(1)
    x, y = x[:60], y[:60] % 4
    embedder = LaplaceEmbedder(Precomputed(SIZE), head="append")
    index = embedder.cross_index(x, y, open_set_fraction=share, folds=folds, progress=False)
    assert len(index.calibration.statistics) == 60 - round(share * 60)
