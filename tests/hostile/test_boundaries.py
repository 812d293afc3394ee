"""What is refused by name: the calls that were found by hand, next to those that a seed makes."""

from __future__ import annotations

from dataclasses import is_dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import baselines
from baselines import LossPrediction
from benchmarks.datasets import load
from laplace_metric import Embedding, LaplaceEmbedder, Monitor, OnlineLaplace, scale
from laplace_metric._utils.randomness import as_generator, own_randomness
from laplace_metric._utils.validation import (
    as_path,
    as_tensor,
    check_count,
    check_positive,
    check_share,
)
from laplace_metric.calibration import guarantee
from laplace_metric.calibration._conformal import conformal_quantile, p_values
from laplace_metric.datasets import ImageSet
from laplace_metric.errors import (
    DtypeError,
    FileFormatError,
    HeadError,
    InputError,
    LabelError,
    NonFiniteError,
    RowError,
    UnknownNameError,
    WriteError,
)
from laplace_metric.inputs import read_inputs
from laplace_metric.inputs._labels import check_labels
from laplace_metric.models import Call, Pooled, Precomputed
from laplace_metric.models._modules import device_of
from laplace_metric.training import train_embedder
from tests.rooms import room

dist = room("laplace_metric.distributions", "baselines.distributions")
ev = room("laplace_metric.evaluation")

D, Z = 4, 3
X = torch.randn(12, D, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
LOADER = [(X, Y)]
CPU = torch.device("cpu")
IMAGES = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
GAUSSIAN = dist.Gaussian(X, X.square())
BATCH = Embedding(GAUSSIAN)
POINTS, SCORES = torch.ones(4, 3), torch.linspace(0, 1, 20)
UNIT, K = torch.eye(3), torch.ones(3)
STREAM = {"u": torch.linspace(0, 1, 60)}
PAIRS = [(POINTS, torch.arange(4) % 2)]
METHODS = [
    name
    for name in baselines.__all__
    if name != "Training" and is_dataclass(getattr(baselines, name))
]
SMALL = {"n_samples": 2, "n_members": 2, "hidden": 8, "k": 3}
QUICK = baselines.Training(epochs=1)


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, Z))


class Changed(nn.Module):
    """Its output is another kind of tensor."""

    def __init__(self, change):
        super().__init__()
        self.head, self.change = nn.Linear(D, Z), change

    def forward(self, x):
        return self.change(self.head(x))


class NoArguments(nn.Module):
    def forward(self):
        return X


class NoIterator:
    def __iter__(self):
        return None


def fit(model=None, loader=LOADER, **settings):
    return LaplaceEmbedder(model or network(), **settings).fit(loader, progress=False)


def mined(*indices):
    return fit(pairs=lambda z, y: indices)


def one(*numbers):
    return torch.tensor(numbers)


def tuned(metric=None, **options):
    how = {"loader": LOADER, "metric": metric, "method": "validation", "bounds": (0.1, 10.0)}
    return fit().tune_prior(**{**how, **options}, progress=False)


def images(**changed):
    good = {"images": IMAGES, "labels": one(0, 1, 0, 1), "name": "x", "class_names": ("a", "b")}
    return ImageSet(**{**good, **changed})


def dense(change=lambda x: x):
    return dist.DenseCovariance(change(torch.eye(D).expand(12, D, D)))


def square(z, *_):
    return z.square().mean()


def train(loss=square, **options):
    return train_embedder(
        torch.nn.Linear(3, 2), PAIRS, loss, **{"epochs": 1, **options}, progress=False
    )


def online(loss=square, model=None, **options):
    method = OnlineLaplace(model or torch.nn.Linear(3, 2))
    return method.fit(PAIRS, loss, **{"epochs": 1, "progress": False, **options})


def quantised(x):
    return torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)


def index():
    return fit().index(X, Y, progress=False)


def method(name, **settings):
    kind = getattr(baselines, name)
    net = nn.Sequential(nn.Linear(D, 8), nn.Dropout(), nn.Linear(8, Z))
    small = {**SMALL, "training": QUICK}
    small = {key: value for key, value in small.items() if key in kind.__dataclass_fields__}
    return kind(settings.pop("model", net), **{**small, **settings})


REFUSED = {
    "inputs meta": lambda: fit()(X.to("meta")),
    "inputs mkldnn": lambda: fit()(X.to_mkldnn()),
    "model meta": lambda: fit(network().to("meta")),
    "device of no module": lambda: device_of(lambda x: x),
    "output meta": lambda: fit(Changed(lambda z: z.to("meta"))),
    "output sparse": lambda: fit(Changed(lambda z: z.to_sparse())),
    "output whole": lambda: fit(Changed(lambda z: z.long())),
    "output complex": lambda: fit(Changed(lambda z: z.to(torch.complex64))),
    "no rows first": lambda: fit(loader=[(X[:0], Y[:0]), *LOADER]),
    "no rows, labels": lambda: fit(loader=[(X[:0], Y), *LOADER]),
    "loader without iterator": lambda: fit(loader=NoIterator()),
    "inputs without iterator": lambda: fit().uncertainties(NoIterator(), progress=False),
    "pairs none": lambda: fit(pairs=lambda z, y: None),
    "pairs int": lambda: fit(pairs=lambda z, y: 3),
    "pairs text": lambda: fit(pairs=lambda z, y: "abcd"),
    "pairs no arguments": lambda: fit(pairs=lambda: None),
    "pairs lists": lambda: mined([0], [1], [0], [2]),
    "pairs numpy": lambda: mined(*(np.array([i]) for i in range(4))),
    "pairs floats": lambda: mined(*[torch.tensor([0.5])] * 4),
    "pairs scalars": lambda: mined(*[torch.tensor(0)] * 4),
    "pairs uneven": lambda: mined(one(0), one(1), one(0), one(1, 2)),
    "pairs beyond": lambda: mined(one(0), one(1), one(0), one(12)),
    "pairs negative": lambda: mined(one(0), one(1), one(0), one(-1)),
    "metric none": lambda: tuned(lambda e, y: None),
    "metric vector": lambda: tuned(lambda e, y: torch.ones(3)),
    "metric text": lambda: tuned("recall"),
    "metric no arguments": lambda: tuned(lambda: 1.0),
    "bounds number": lambda: tuned(lambda e, y: 1.0, bounds=Fraction(1, 2)),
    "bounds scalar": lambda: tuned(lambda e, y: 1.0, bounds=np.array(1.0)),
    "loss no arguments": lambda: train_embedder(network(), LOADER, lambda: 1, epochs=1),
    "loss without pairs": lambda: train_embedder(
        network(), LOADER, lambda z, y: z.sum(), epochs=1, miner=lambda z, y: ()
    ),
    "miner no arguments": lambda: train_embedder(
        network(), LOADER, lambda z, y, m: z.sum(), epochs=1, miner=lambda: ()
    ),
    "online loss": lambda: OnlineLaplace(network()).fit(LOADER, lambda: 1, epochs=1),
    "parts text": lambda: Embedding.concatenate("x"),
    "parts number": lambda: Embedding.concatenate(0.5),
    "parts numbers": lambda: Embedding.concatenate([1, 2]),
    "parts of two sizes": lambda: Embedding.concatenate(
        [BATCH, Embedding(dist.Gaussian(X[:, :2], X[:, :2].square()))]
    ),
    "parts of two kinds": lambda: Embedding.concatenate(
        [BATCH, Embedding(dist.ProjectedNormal(X, X.square()))]
    ),
    "parts with and without score": lambda: Embedding.concatenate(
        [BATCH, Embedding(GAUSSIAN, torch.ones(12))]
    ),
    "parts of two covariances": lambda: Embedding.concatenate(
        [BATCH, Embedding(dist.Gaussian(X, dense()))]
    ),
    "parts of two posteriors": lambda: dist.RotatedCovariance.concatenate(
        [dist.RotatedCovariance(basis, X.square()) for basis in (torch.eye(D), -torch.eye(D))]
    ),
    "rows text": lambda: BATCH["abc"],
    "rows words": lambda: BATCH[["a", 1]],
    "rows real": lambda: BATCH[0.5],
    "rows sparse": lambda: BATCH[one(0, 1).to_sparse()],
    "rows mask": lambda: BATCH[torch.ones(3, dtype=torch.bool)],
    "rows slice": lambda: BATCH["a":],
    "noise shape": lambda: dense().color(torch.ones(12, D)),
    "noise scalar batch": lambda: dist.DenseCovariance(torch.eye(D)).color(torch.ones(D)),
    "concentration scalar": lambda: dist.NonIsotropicVonMisesFisher(torch.eye(3), 0.5),
    "images numpy": lambda: images(images=IMAGES.numpy()),
    "images mkldnn": lambda: images(images=IMAGES.float().to_mkldnn()),
    "image labels list": lambda: images(labels=[0, 1, 0, 1]),
    "image labels nested": lambda: images(labels=torch.nested.nested_tensor([one(0)] * 4)),
    "class names": lambda: images(class_names=5),
    "pooled whole": lambda: Pooled(nn.Identity())(torch.ones(2, 3, 4, dtype=torch.int8)),
    "method arguments": lambda: Call(NoArguments(), "forward")(X),
    "features nested": lambda: scale.collect(
        scale.Plan(LaplaceEmbedder(network()), X).task, torch.nested.nested_tensor([X[0]]), Y[:1]
    ),
    "limit": lambda: load("digits", limit=Fraction(3, 1)),
    "limits": lambda: load("digits", limit=np.array([1, 2])),
    "size": lambda: load("photographs", size=2.5),
    "sparse": lambda: as_tensor("x", POINTS.to_sparse()),
    "meta": lambda: as_tensor("x", POINTS.to("meta")),
    "nested": lambda: as_tensor("x", torch.nested.nested_tensor([POINTS])),
    "quantised": lambda: as_tensor("x", torch.quantize_per_tensor(POINTS, 0.1, 0, torch.qint8)),
    "float8": lambda: as_tensor("x", POINTS.to(torch.float8_e4m3fn)),
    "ragged": lambda: as_tensor("x", [[1], [1, 2]]),
    "masked": lambda: as_tensor("x", np.ma.masked_array([1.0], mask=[True])),
    "uint64": lambda: as_tensor("x", np.array([2**63], np.uint64)),
    "path number": lambda: as_path("x", 5),
    "path nul": lambda: as_path("x", "a\0b"),
    "path empty": lambda: as_path("x", ""),
    "share text": lambda: check_share("x", "0.9"),
    "share decimal": lambda: check_share("x", Decimal("0.5")),
    "positive huge": lambda: check_positive("x", 10**400),
    "positive bool": lambda: check_positive("x", True),
    "count bool": lambda: check_count("x", True),
    "count huge": lambda: check_count("x", 10**30),
    "seed bool": lambda: as_generator(True, "x"),
    "seed text": lambda: as_generator("0", "x"),
    "seed negative": lambda: as_generator(-1, "x"),
    "seed numpy": lambda: as_generator(np.random.default_rng(0), "x"),
    "loc list": lambda: dist.VonMisesFisher([[1.0, 0.0]], 1.0),
    "loc and k": lambda: dist.VonMisesFisher(UNIT, torch.ones(2)),
    "k negative": lambda: dist.VonMisesFisher(UNIT, -K, validate_args=True),
    "value text": lambda: dist.VonMisesFisher(UNIT, K).log_prob("x"),
    "value off": lambda: dist.VonMisesFisher(UNIT, K, validate_args=True).log_prob(2 * UNIT),
    "value width": lambda: dist.HypersphericalUniform(3).log_prob(torch.ones(2, 2)),
    "sample shape": lambda: dist.VonMisesFisher(UNIT, K).sample("a"),
    "gaussian shapes": lambda: dist.Gaussian(POINTS, POINTS[:, :1]),
    "gaussian sparse": lambda: dist.ProjectedNormal(POINTS, POINTS.to_sparse()),
    "gaussian n": lambda: dist.Gaussian(POINTS, POINTS).sample("3"),
    "covariance square": lambda: dist.DenseCovariance(POINTS),
    "covariance vectors": lambda: dist.DiagonalCovariance(POINTS).apply("x"),
    "empirical": lambda: dist.Empirical(POINTS, False),
    "directions": lambda: dist.Directions(UNIT, K[:2]),
    "resultant": lambda: dist.vmf_concentration(0.5, 3),
    "angle dimension": lambda: dist.sample_angle(K, 1),
    "cap": lambda: dist.in_cap("x", UNIT, 0.5),
    "cap probability": lambda: dist.cap_angle(K, 3, []),
    "score": lambda: dist.unnormalized_vmf_score(UNIT, K, "x"),
    "bootstrap": lambda: ev.bootstrap_interval(None, [1.0]),
    "bootstrap result": lambda: ev.bootstrap_interval(lambda x: x, [1.0, 2.0], n=2),
    "monitor generator": lambda: Monitor(STREAM, window=30, seed="0"),
    "monitor path": lambda: Monitor(STREAM, window=30).save(5),
    "loss text": lambda: train("x"),
    "loss float": lambda: train(lambda z, y: 1.0),
    "loss vector": lambda: train(lambda z, y: z.sum(1)),
    "loss constant": lambda: train(lambda z, y: z.sum().detach()),
    "optimizer": lambda: train(optimizer="adam"),
    "scheduler": lambda: train(scheduler=5),
    "miner": lambda: train(miner=5),
    "epochs": lambda: online(epochs=float("inf")),
    "checkpoint": lambda: online(checkpoint={}),
    "decay": lambda: OnlineLaplace(torch.nn.Linear(3, 2), decay="x"),
    "merge": lambda: scale.merge(5),
    "merge parts": lambda: scale.merge([5]),
    "precomputed": lambda: Precomputed()(POINTS.to_sparse()),
    "precomputed size": lambda: Precomputed("3"),
    "method name": lambda: Call(torch.nn.Linear(3, 2), 5),
    "training decay": lambda: baselines.Training(decay="x"),
    "baseline path": lambda: baselines.Deterministic.load(None, torch.nn.Linear(3, 2)),
    "a covariance of no coordinates": lambda: dist.DiagonalCovariance(torch.tensor(1.0)),
    "scheduler class": lambda: train(scheduler=torch.optim.lr_scheduler.StepLR),
    "scheduler foreign": lambda: train(
        scheduler=torch.optim.LBFGS([torch.ones(1, requires_grad=True)])
    ),
    "loss meta": lambda: train(lambda z, y: z.to("meta").sum()),
    "hidden": lambda: LossPrediction(network(), hidden=-1),
    "dtype of sums": lambda: scale.Plan(LaplaceEmbedder(network()), X, dtype=torch.int64),
    "metric of other arrays": lambda: ev.bootstrap_interval(lambda: 1.0, SCORES),
    "empty arrays": lambda: ev.bootstrap_replicates(np.mean, np.ones((3, 0)), n=3),
    "nan among scores": lambda: p_values(one(0.0, float("nan")), SCORES),
    "nan held out": lambda: conformal_quantile(one(0.0, float("nan")), 0.2),
    "correct of no truth": lambda: guarantee(SCORES, SCORES, recall=0.2),
    "uneven ids": lambda: index().remove([[1], [1, 2]]),
    "queries without iterator": lambda: index().search(NoIterator(), k=2),
    "rows of labels": lambda: method("ViM").fit([(X, Y[:-1])], progress=False),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_refused_by_name(call):
    with pytest.raises(InputError):
        call()


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
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
}


@pytest.mark.parametrize("make", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_what_is_no_array_is_refused(make):
    fresh = index()
    calls = [
        lambda: fresh.search(make(X), k=2),
        lambda: fresh.add(make(X), Y),
        lambda: fresh.add(X, make(Y)),
        lambda: fresh.add(X, Y, make(Y)),
        lambda: fresh.remove(make(Y[:2])),
        lambda: fit().index(X, make(Y), progress=False),
        lambda: p_values(make(SCORES), SCORES),
        lambda: p_values(SCORES, make(SCORES)),
        lambda: conformal_quantile(make(SCORES), 0.2),
        lambda: guarantee(make(SCORES), SCORES > 0.5, recall=0.1),
        lambda: guarantee(SCORES, make(SCORES > 0.5), recall=0.1),
    ]
    for call in calls:
        with pytest.raises(InputError):
            call()
    assert len(fresh) == len(X)


@pytest.mark.parametrize("number", [0, True, "3", 2.0, None, 10**30])
def test_no_counts_of_neighbours(number):
    with pytest.raises(InputError, match="k="):
        index().search(X, k=number)


@pytest.mark.parametrize(
    "labels",
    [
        Y.to("meta"),
        Y.to_sparse(),
        torch.quantize_per_tensor(Y.float(), 1.0, 0, torch.qint8),
    ],
    ids=["meta", "sparse", "quantised"],
)
def test_labels_of_another_kind(labels):
    with pytest.raises(LabelError):
        check_labels(labels)
    with pytest.raises(LabelError):
        next(iter(read_inputs("loader", [(X, labels)], labelled=True)))


@pytest.mark.parametrize("name", ["hessian", "positivity"])
@pytest.mark.parametrize("value", [{}, []])
def test_a_name_is_text(name, value):
    with pytest.raises(UnknownNameError):
        LaplaceEmbedder(network(), **{name: value})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", [10**30, Fraction(1, 2), np.float32(0.5)])
def test_numbers_are_kept_as_floats(value, tmp_path):
    fitted = fit(prior_precision=value, n_effective=value, margin=value)
    kept = fitted.settings
    assert {type(x) for x in (kept.prior_precision, kept.n_effective, kept.margin)} <= {float}
    assert fitted.posterior_.prior_precision == float(value)
    assert fitted(X).uncertainty.isfinite().all()
    fitted.save(tmp_path / "saved")
    assert LaplaceEmbedder.load(tmp_path / "saved", network()).settings == kept


@pytest.mark.parametrize("change", [lambda z: {"z": z}, lambda z: None], ids=["dict", "none"])
def test_a_head_that_gives_no_tensor(change):
    with pytest.raises(HeadError):
        LaplaceEmbedder(Changed(change), head="").fit(LOADER, progress=False)


def test_rows_of_a_batch():
    mask = (Y == 1).numpy()
    for same in (
        [1, 4, 7, 10],
        one(1, 4, 7, 10).to(torch.int8),
        mask,
        mask.tolist(),
        slice(1, 12, 3),
    ):
        assert torch.equal(BATCH[same].mean, X[Y == 1])
    assert torch.equal(BATCH[-1].mean, X[-1:])
    assert torch.equal(BATCH[np.uint8(2)].mean, X[2:3])
    assert len(list(BATCH)) == 12  # iteration ends by an IndexError
    assert len(BATCH[[]]) == 0
    for beyond in (12, -13, 2**70, [12]):
        with pytest.raises(RowError):
            BATCH[beyond]


def test_types_of_a_dense_covariance():
    with pytest.raises(DtypeError):
        dense().apply(X.double())
    with pytest.raises(DtypeError):
        dense(torch.Tensor.half)
    with pytest.raises(NonFiniteError):
        dense(lambda x: x * torch.nan).color(torch.ones(2, 12, D))
    single = dist.DenseCovariance(4 * torch.eye(D))
    assert torch.equal(single.color(torch.ones(2, D)), torch.full((2, D), 2.0))


def test_a_checkpoint_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError):
        LaplaceEmbedder(network()).fit(
            LOADER, progress=False, checkpoint_dir=tmp_path / "file" / "below"
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_no_rows_have_no_uncertainty(structure, distance):
    fitted = fit(structure=structure, distance=distance)
    assert fitted(X[:0]).uncertainty.shape == (0,)
    assert fitted.distance(X[:0], X[:0]).mean.shape == (0,)


def test_a_head_meets_another_model(tmp_path):
    fitted = LaplaceEmbedder(network(), head="append").fit(LOADER, progress=False)
    fitted.save(tmp_path / "saved")
    with pytest.raises(FileFormatError, match=r"not the one .*has no '0\.weight'.*fit again"):
        LaplaceEmbedder.load(tmp_path / "saved", nn.Linear(X.shape[1], 7))
    of_vectors = LaplaceEmbedder(nn.Identity(), head="append").fit(LOADER, progress=False)
    of_vectors.save(tmp_path / "saved")
    other = LaplaceEmbedder.load(tmp_path / "saved", nn.Linear(X.shape[1], 7))
    with pytest.raises(HeadError, match="7.*appended head takes"):
        other(X)


@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_computed_cannot_be_moved_online():
    model = nn.Sequential(
        nn.Linear(X.shape[1], 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    )
    with pytest.raises(HeadError, match="weight_norm"):
        OnlineLaplace(model).fit(LOADER, lambda z, y: z.sum(), epochs=1, progress=False)


SEEDED = {
    "monitor": lambda g: Monitor(STREAM, window=30, seed=g).update(STREAM),
    "von Mises-Fisher": lambda g: dist.VonMisesFisher(UNIT, K).sample((2,), g),
    "uniform": lambda g: dist.HypersphericalUniform(3).sample((2,), g),
    "gaussian": lambda g: dist.Gaussian(POINTS, POINTS).sample(2, g),
    "empirical": lambda g: dist.Empirical(torch.rand(3, 2, 2), False).sample(2, g).shape,
    "directions": lambda g: dist.Directions(UNIT, K).sample(2, g),
    "angle": lambda g: dist.sample_angle(K, 4, g).cosine,
    "bootstrap": lambda g: ev.bootstrap_replicates(lambda x: x.mean(), [0, 1, 5], n=5, seed=g),
}


@pytest.mark.parametrize("draw", SEEDED.values(), ids=SEEDED)
def test_a_seed_is_a_generator(draw):
    for seed in (3, np.int64(3)):
        ours, theirs = draw(seed), draw(torch.Generator().manual_seed(3))
        assert torch.equal(ours, theirs) if torch.is_tensor(ours) else ours == theirs


def test_a_seed_of_a_training():
    drawn = []
    for generator in (3, torch.Generator().manual_seed(3)):
        with own_randomness(generator, torch.device("cpu")) as source:
            drawn.append((torch.rand(1, generator=source), torch.rand(1)))
    assert drawn[0] == drawn[1]


def test_numbers_of_numpy():
    assert check_positive("x", np.float32(0.5)) == 0.5
    assert check_share("x", np.float64(0.5)) == 0.5
    assert check_count("x", np.uint8(3)) == 3
    assert type(check_count("x", np.uint8(3))) is int


def test_bytes_stay_bytes():
    for dtype in (np.uint8, np.int32, np.bool_, np.dtype(">i4")):
        first, *rest = read_inputs("queries", np.ones((300, 2), dtype))
        rows = first.inputs
        assert rows.dtype == getattr(torch, np.dtype(dtype).name)
        assert (len(rows), len(rest)) == (256, 1)


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
                with pytest.raises(InputError, match=f"{key}(=| is)"):
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
    for model in (None, {}, print, nn.Linear, nn.Linear(4, 3).to("meta")):
        with pytest.raises(InputError, match="model is"):
            method(name, model=model)


@pytest.mark.parametrize("name", METHODS)
def test_rows_without_numbers_are_refused_by_baselines(name):
    fitted = method(name).fit([(X, Y)], progress=False)
    for value in (float("nan"), float("inf")):
        with pytest.raises(NonFiniteError, match="1 of 12"):
            fitted(torch.cat([X[:1] * 0 + value, X[1:]]))
    with pytest.raises(DtypeError):
        fitted(X.double())
