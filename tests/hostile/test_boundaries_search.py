"""Search, evaluation and baselines: what is no array, id, number or model is refused by name."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

import baselines
from laplace_metric import LaplaceEmbedder, scale
from laplace_metric.calibration._conformal import conformal_quantile, p_values
from laplace_metric.calibration._thresholds import threshold_for
from laplace_metric.errors import DtypeError, InputError, NonFiniteError, UnknownNameError
from tests.rooms import room

ev = room("laplace_metric.evaluation")

G = torch.Generator().manual_seed(0)
Y = torch.arange(120) % 3
X = 2 * torch.nn.functional.one_hot(Y, 4).float() + torch.randn(120, 4, generator=G)
S = torch.linspace(0, 1, 20)
QUICK = baselines.Training(epochs=1)


def quantised(x):
    return torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)


def nested(x):
    return torch.nested.nested_tensor(list(x))


NO_ARRAYS = {
    "sparse": torch.Tensor.to_sparse,
    "meta": lambda x: x.to("meta"),
    "quantised": quantised,
    "mkldnn": lambda x: x.float().to_mkldnn(),
    "complex": lambda x: x.to(torch.complex64),
    "float8": lambda x: x.float().to(torch.float8_e4m3fn),
    "scalar": lambda x: torch.tensor(1),
    "structured": lambda x: np.zeros(len(x), dtype=[("a", "f4")]),
    "masked": lambda x: np.ma.masked_array(x.numpy(), mask=True),
    "strings": lambda x: 5,
}
NO_ARRAYS["nested"] = nested


@cache
def embedder():
    return LaplaceEmbedder.from_embeddings(X, Y)


@cache
def index():
    made = embedder().index(X, Y, progress=False)
    made.calibrate(X + 0.5, Y, k=3, depth=5)
    return made


@pytest.mark.parametrize("make", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_what_is_no_array_is_refused(make):
    fresh = embedder().index(X, Y, progress=False)
    calls = [
        lambda: index().search(make(X), k=2),
        lambda: index().retrieval_sets(make(X)),
        lambda: fresh.add(make(X), Y),
        lambda: fresh.add(X, make(Y)),
        lambda: fresh.add(X, Y, make(Y)),
        lambda: fresh.remove(make(Y[:2])),
        lambda: embedder().index(X, make(Y), progress=False),
        lambda: p_values(make(S), S),
        lambda: p_values(S, make(S)),
        lambda: conformal_quantile(make(S), 0.2),
        lambda: threshold_for(make(S), S > 0.5, recall=0.1),
        lambda: threshold_for(S, make(S > 0.5), recall=0.1),
        lambda: ev.mann_whitney(make(S), S),
    ]
    for call in calls:
        with pytest.raises(InputError):
            call()
    assert len(fresh) == len(X)


def test_ids_and_labels_of_uneven_rows():
    fresh = embedder().index(X, Y, progress=False)
    for call in (lambda: fresh.remove([[1], [1, 2]]), lambda: fresh.add(X, [[1]] * 119 + [[1, 2]])):
        with pytest.raises(InputError):
            call()


def test_arrays_of_another_layout_are_searched():
    plain, array = index().search(X, k=2), X.numpy()
    same = (
        array.astype(">f4"),
        array[::-1].copy()[::-1],
        array.astype(np.longdouble),
        np.asfortranarray(array),
        torch._neg_view(-X),
    )
    for queries in same:
        assert (index().search(queries, k=2).ids == plain.ids).all()
    negated = embedder().index(X, torch._neg_view(-Y), progress=False)
    assert (negated.labels == Y.numpy()).all()
    swapped = Y.numpy().astype(">i2")
    assert (embedder().index(X, swapped, swapped * 0 + np.arange(120)).labels == Y.numpy()).all()


def test_bytes_stay_bytes():
    from laplace_metric.search._encoding import batches

    for dtype in (np.uint8, np.int32, np.bool_, np.dtype(">i4")):
        (rows, _), *rest = batches("queries", np.ones((300, 2), dtype))
        assert rows.dtype == getattr(torch, np.dtype(dtype).name)
        assert (len(rows), len(rest)) == (256, 1)


@pytest.mark.parametrize("integer", [np.int64, np.uint8, np.int32])
def test_numbers_of_numpy_count_neighbours(integer):
    assert index().search(X, k=integer(3)).ids.shape == (120, 3)
    assert index().evaluate(X, Y, X, depth=integer(5)).ood.items == 120
    assert len(index().credible_sets(X, depth=integer(5))) == 120


@pytest.mark.parametrize("number", [0, True, "3", 2.0, None, 10**30])
def test_no_counts_of_neighbours(number):
    with pytest.raises(InputError, match="depth="):
        index().evaluate(X, Y, depth=-1 if number is None else number)
    with pytest.raises(InputError, match="k="):
        index().search(X, k=number)


@pytest.mark.parametrize(
    "threshold", [None, "0.5", [], 1j, 10**30 * 10**300, float("nan"), object()]
)
def test_no_thresholds(threshold):
    with pytest.raises(InputError, match="threshold="):
        index().search(X, k=2).accepted(threshold)


def test_a_loader_that_cannot_be_iterated():
    class Broken:
        def __iter__(self):
            return None

    with pytest.raises(InputError, match="queries is a Broken"):
        index().search(Broken(), k=2)


def test_scores_of_any_kind():
    expected = p_values(S, S)
    for same in (S.numpy(), S.tolist(), S.numpy()[::-1].copy()[::-1], S.double()):
        assert torch.allclose(p_values(same, same), expected)
        assert conformal_quantile(same, 0.2) == pytest.approx(conformal_quantile(S, 0.2))
        threshold = threshold_for(same, (S > 0.5).tolist(), recall=0.2)
        assert threshold.value == pytest.approx(threshold_for(S, S > 0.5, recall=0.2).value)


def test_scores_without_a_rank():
    unknown = torch.cat([S, torch.tensor([float("nan")])])
    for call in (
        lambda: p_values(unknown, S),
        lambda: p_values(S, unknown),
        lambda: conformal_quantile(unknown, 0.2),
        lambda: threshold_for(unknown, S > 2, recall=0.2),
    ):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InputError, match="values between 0 and 1"):
        threshold_for(S, S, recall=0.2)
    assert conformal_quantile(torch.cat([S, torch.tensor([-torch.inf] * 9)]), 0.2) == -torch.inf


@pytest.mark.parametrize("depths", [3, np.array(3), torch.tensor(3), None])
def test_depths_of_a_report(depths):
    with pytest.raises(InputError, match="recall_ks"):
        ev.retrieval_report(X, Y, recall_ks=depths)


def test_metrics_of_other_arrays():
    for metric in (lambda: 1.0, lambda a, b: 1.0, None):
        with pytest.raises(InputError, match="metric"):
            ev.bootstrap_interval(metric, S)
    with pytest.raises(InputError, match="empty"):
        ev.bootstrap_replicates(np.mean, np.ones((3, 0)), n=3)
    assert ev.bootstrap_interval(max, S.tolist(), n=3).estimate == 1.0  # says nothing of itself


METHODS = [name for name in baselines.__all__ if name != "Training"]
SMALL = {"n_samples": 2, "n_members": 2, "hidden": 8, "k": 3, "training": QUICK}


def method(name, **settings):
    kind = getattr(baselines, name)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3))
    small = {k: v for k, v in SMALL.items() if k in kind.__dataclass_fields__}
    return kind(settings.pop("model", net), **{**small, **settings})


@pytest.mark.parametrize("name", METHODS)
def test_rows_without_numbers_are_refused_by_baselines(name):
    fitted = method(name).fit([(X, Y)], progress=False)
    for value in (float("nan"), float("inf")):
        with pytest.raises(NonFiniteError, match="1 of 120"):
            fitted(torch.cat([X[:1] * 0 + value, X[1:]]))
    with pytest.raises(DtypeError):
        fitted(X.double())


def numbers(name, kind):
    annotations = getattr(baselines, name).__dataclass_fields__.items()
    return [key for key, f in annotations if f.init and str(f.type).removesuffix(" | None") == kind]


@pytest.mark.parametrize("name", [*METHODS, "Training"])
def test_settings_of_baselines(name):
    make = baselines.Training if name == "Training" else lambda **s: method(name, **s)
    junk = ["x", [], np.array([0.5, 0.5]), 1j, object(), print]
    for kind, bad in (("float", [10**400, 1e308, True]), ("int", [2.5, True]), ("bool", [1, None])):
        for key in numbers(name, kind):
            for value in (*junk, *bad):
                with pytest.raises(InputError, match=f"{key}="):
                    make(**{key: value})
    for key in numbers(name, "str"):
        for value in (5, [], {}, None):
            with pytest.raises(UnknownNameError):
                make(**{key: value})


def test_settings_of_numpy_become_plain():
    made = method("KNNDistance", k=np.uint8(3), fraction=np.float32(0.5), spherical=np.True_)
    assert [type(v) for v in (made.k, made.fraction, made.spherical)] == [int, float, bool]


@pytest.mark.parametrize("name", METHODS)
def test_models_of_baselines(name):
    for model in (None, {}, print, torch.nn.Linear, torch.nn.Linear(4, 3).to("meta")):
        with pytest.raises(InputError, match="model is"):
            method(name, model=model)


@pytest.mark.parametrize(
    "name", ["ViM", "KNNDistance", "Mahalanobis", "SNGP", "DeepEnsemble", "MetricLearning"]
)
def test_labels_of_baselines(name):
    with pytest.raises(InputError, match="labels has 119 rows"):
        method(name).fit([(X, Y[:-1])], progress=False)


@pytest.mark.parametrize("precision", ["float32", torch.int64, 5, object()])
def test_types_of_sums(precision):
    fresh = LaplaceEmbedder(torch.nn.Linear(4, 3), margin=1.0)
    with pytest.raises(InputError, match="precision="):
        scale.Plan(fresh, X, precision=precision)
