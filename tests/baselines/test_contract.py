"""What every baseline must do, and what it refuses by name: one row a method."""

from __future__ import annotations

import contextlib
import copy
from functools import partial

import pytest
import torch
from torch import nn

import baselines as b
from baselines.base import Training
from baselines.base.classifiers import logistic_regression
from baselines.base.neighbours import check_fraction
from baselines.base.pairs import check_rows, positive_pairs
from baselines.base.probabilities import disagreement
from baselines.base.procrustes import align
from baselines.cross_entropy import LinearCrossEntropyLoss
from baselines.frozen_loss_prediction import ranking_loss, retrieval_losses
from baselines.het_xl import HETXLLoss
from baselines.loss_prediction import LossPredictionLoss
from baselines.mcinfonce import MCInfoNCELoss
from baselines.shared_backbone_ensemble import EnsembleLoss
from laplace_metric.errors import (
    EmptyLoaderError,
    FileFormatError,
    HeadError,
    InputError,
    LabelError,
    NonFiniteError,
    NotFittedError,
    UnknownNameError,
)

QUICK = Training(epochs=2)
DROPOUT = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))


def jitter(x):
    return x + 0.1 * torch.randn_like(x)


def trained(kind, **settings):
    return partial(kind, training=QUICK, **settings)


def small(kind, **settings):
    return trained(kind, hidden=8, **settings)


ONE_CLASS = {  # methods that can be fitted to a single class
    "deterministic": b.Deterministic,
    "mahalanobis": b.Mahalanobis,
    "relative mahalanobis": partial(
        b.Mahalanobis, relative=True, on="features", covariance="ledoit_wolf"
    ),
    "flow density": trained(b.FlowDensity, hidden=8),
    "flow density, features": trained(b.FlowDensity, hidden=8, on="features", spherical=False),
    "gplvm": trained(b.GPLVM, latent=2, n_inducing=10, search_steps=5),
    "mahalanobis++": partial(b.Mahalanobis, normalise=True),
    "k-nn": b.KNNDistance,
    "k-nn, features": partial(b.KNNDistance, k=3, fraction=0.5, on="features"),
    "byol": small(b.ExplicitConcentration, base="byol", augment=jitter),  # views are positives
}
METHODS = {
    **ONE_CLASS,
    "metric learning": trained(b.MetricLearning),
    "infonce": trained(b.InfoNCE),
    "pfe": small(b.PFE),
    "hib": small(b.HIB),
    "mcinfonce": small(b.MCInfoNCE),
    "mcinfonce, norm": trained(b.MCInfoNCE, concentration="norm"),
    "mcinfonce, frozen": small(b.MCInfoNCE, frozen=True),
    "elk": small(b.ELK),
    "elk, pairs": small(b.ELK, form="pairs"),
    "nivmf": small(b.NivMF),
    "contrastive hib": small(b.ContrastiveHIB),
    "scott": trained(b.ScottVMF),
    "explicit concentration": small(b.ExplicitConcentration),
    "deep ensemble": trained(b.DeepEnsemble, n_members=2),
    "cross-entropy": trained(b.CrossEntropy),
    "loss prediction": small(b.LossPrediction),
    "loss prediction, features": small(b.LossPrediction, on="features"),
    "frozen loss prediction": small(b.FrozenLossPrediction, on="features", batch_size=7),
    "ensemble": trained(b.SharedBackboneEnsemble),
    "ensemble, apart": trained(b.SharedBackboneEnsemble, loss="mean", score="jensen_shannon"),
    "class dropout": trained(b.ClassDropout),
    "class dropout, inside": trained(b.ClassDropout, score="jensen_shannon"),
    "sngp": trained(b.SNGP, n_features=32),
    "sngp, spectral": trained(
        b.SNGP, n_features=32, spectral=True, layer_norm=False, on="features"
    ),
    "het-xl": trained(b.HETXL),
    "het-xl, euclidean": trained(b.HETXL, rank=3, spherical=False, score="entropy"),
    "failure predictor": small(b.FailurePredictor, batch_size=7),
    "failure predictor, features": small(b.FailurePredictor, on="features", spherical=False),
    "asymvlm": small(b.AsymVLM),
    "vim": b.ViM,
    "vim, features": partial(b.ViM, on="features", dimension=3),
    "nnguide": partial(b.NNGuide, k=3, fraction=0.5, on="features"),
    "nuq": b.NUQ,
    "nuq, epistemic": partial(b.NUQ, part="epistemic", on="features", k=5, normalise=True),
}


ELSEWHERE = {"Training", "MCDropout", "ProbVLM", "cosine_discount"}
"""No method; one that needs a network with dropout: ``test_baselines``; two of embeddings that are
there: ``test_probvlm``, ``test_cosine_discount``."""


def test_every_baseline_is_held_to_the_contract():
    held = {getattr(make, "func", make).__name__ for make in METHODS.values()}
    left_out = set(b.__all__) - held - ELSEWHERE
    assert not left_out, "give each a row in METHODS of this file"


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


@pytest.fixture
def model(name, model):
    return copy.deepcopy(DROPOUT) if name == "class dropout, inside" else model


@pytest.fixture
def method(name, model, loader):
    return METHODS[name](model).fit(loader, progress=False)


def test_embedding(method, loader, data):
    x, y = data
    embedding = method(x)
    assert embedding.mean.shape == (60, 4)
    assert embedding.uncertainty.shape == (60,)
    assert bool(embedding.uncertainty.isfinite().all())
    assert not embedding.mean.requires_grad
    assert not embedding.uncertainty.requires_grad
    if method.spherical:
        torch.testing.assert_close(embedding.mean.norm(dim=1), torch.ones(60))
    assert method.sample(x[:7], 3, torch.Generator().manual_seed(0)).shape == (3, 7, 4)
    means, labels = method.embed(loader, progress=False)
    assert torch.equal(labels, y)
    assert len(means) == 60


def test_leaves_everything_alone(name, model, loader, data):
    model.train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    method = METHODS[name](model).fit(loader, progress=False)
    method(data[0])
    method.sample(data[0], 2, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(m.training for m in model.modules())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_reproducible_saved_and_read_back(name, method, model, loader, data, tmp_path):
    x = data[0]
    again = METHODS[name](model).fit(loader, progress=False)
    torch.testing.assert_close(method(x).uncertainty, again(x).uncertainty)
    draws = [m.sample(x, 2, torch.Generator().manual_seed(3)) for m in (method, again)]
    torch.testing.assert_close(*draws)
    method.save(tmp_path / "saved")
    loaded = type(method).load(tmp_path / "saved", model)
    assert torch.equal(loaded(x).mean, method(x).mean)
    assert torch.equal(loaded(x).uncertainty, method(x).uncertainty)
    other = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    for path, network in ((tmp_path / "saved", other), (tmp_path / "nothing", model)):
        with pytest.raises(FileFormatError):
            type(method).load(path, network)


def test_errors_and_labels_that_are_not_numbered(name, model, data):
    x, y = data
    method = METHODS[name](model)
    with pytest.raises(NotFittedError, match="fit"):
        method.save("nowhere")
    with pytest.raises(EmptyLoaderError):
        method.fit([], progress=False)
    with pytest.raises(LabelError):
        method.fit([x], progress=False)
    if name not in ONE_CLASS:
        with pytest.raises(LabelError, match="single class"):
            method.fit([(x, torch.zeros_like(y))], progress=False)
    assert method.model is model
    method.fit([(x, 7 * y - 3)], progress=False)
    assert bool(method(x).uncertainty.isfinite().all())


def test_float64(name, model, data):
    x, y = data[0].double(), data[1]
    embedding = METHODS[name](model.double()).fit([(x, y)], progress=False)(x)
    assert (embedding.mean.dtype, embedding.uncertainty.dtype) == (torch.float64, torch.float64)


def test_a_head_by_name_or_module(name, model, loader):
    path, layer = [pair for pair in model.named_modules() if isinstance(pair[1], nn.Linear)][-1]
    for head in (path, layer):
        method = METHODS[name](model)
        method.head = head
        assert method.fit(loader, progress=False).fitted_.head.name == path


def test_an_interrupted_fit_changes_nothing(name, model, data):
    x, y = data

    class Broken:
        passes = 0

        def __iter__(self):
            yield x, y
            self.passes += 1
            if self.passes > 1:
                raise KeyboardInterrupt

    method = METHODS[name](model).fit([(x, y)], progress=False)
    before, state = method(x).uncertainty, torch.get_rng_state()
    with contextlib.suppress(KeyboardInterrupt):
        method.fit(Broken(), progress=False)
        return  # one pass was enough
    assert torch.equal(method(x).uncertainty, before)
    assert torch.equal(torch.get_rng_state(), state)


X, Y = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
NET = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))


def fit(kind, x=X, y=Y, **settings):
    return kind(NET, **settings).fit([(x, y)], progress=False)


SETTINGS = [  # out of their range, of every kind of check
    (b.MCInfoNCE, "n_samples", 0),
    (b.MCInfoNCE, "inverse_temperature", -1.0),
    (b.MCInfoNCE, "initial_concentration", 0.0),
    (b.InfoNCE, "inverse_temperature", 0.0),
    (b.ELK, "class_concentration", -2.0),
    (b.ExplicitConcentration, "temperature", 0.0),
    (b.HIB, "n_samples", 1.5),
    (b.PFE, "hidden", 0),
    (b.ClassDropout, "rate", 1.0),
    (b.SNGP, "lengthscale", 0.0),
    (b.SNGP, "mean_field_factor", -1.0),
    (b.FrozenLossPrediction, "margin", 0),
    (b.LossPrediction, "weight", 0),
    (b.NUQ, "bandwidth", 0),
    (b.KNNDistance, "k", 0),
    (b.KNNDistance, "fraction", 1.5),
    (b.HETXL, "rank", 0),
    (b.HETXL, "variance", 0.0),
    (b.ViM, "dimension", -1),
    (b.SharedBackboneEnsemble, "n_members", 0),
    (b.Deterministic, "score", "entropy"),
    (b.Mahalanobis, "covariance", "oas"),
    (b.Mahalanobis, "on", "logits"),
    (b.SNGP, "score", "norm"),
    (b.NUQ, "part", "entropy"),
    (b.SharedBackboneEnsemble, "loss", "sum"),
    (b.ClassDropout, "score", "std"),
    (b.MCInfoNCE, "concentration", "trace"),
    (b.ELK, "form", "triplets"),
]


@pytest.mark.parametrize(("kind", "setting", "value"), SETTINGS)
def test_settings_are_checked_before_anything_is_read(kind, setting, value):
    error = UnknownNameError if isinstance(value, str) else InputError
    with pytest.raises(error, match=f"{setting}={value!r}"):
        kind(NET, **{setting: value})


REFUSED = {
    "k too large": (InputError, "only 60 of 60", lambda: fit(b.KNNDistance, k=61)),
    "bank too small": (InputError, "only 30 of", lambda: fit(b.NNGuide, k=50, fraction=0.5)),
    "fraction": (InputError, "fraction=0", lambda: check_fraction(0.0)),
    "classifier": (InputError, "takes 8", lambda: fit(b.NNGuide, classifier=nn.Linear(8, 3))),
    "all directions": (InputError, "dimension=4 leaves", lambda: fit(b.ViM, dimension=4)),
    "copies": (InputError, "pass a bandwidth", lambda: fit(b.NUQ, torch.zeros(60, 5))),
    "one class": (LabelError, "single class", lambda: logistic_regression(X, 0 * Y)),
    "one class, losses": (LabelError, "single class", lambda: retrieval_losses(X, 0 * Y)),
    "alone": (LabelError, "share", lambda: fit(b.FrozenLossPrediction, y=torch.arange(60))),
    "nan": (NonFiniteError, "NaN or infinite", lambda: fit(b.Mahalanobis, X * torch.nan)),
    "frozen": (InputError, "frozen=False", lambda: b.SNGP(NET, spectral=True, frozen=True)),
    "no direction": (InputError, "direction", lambda: b.MCInfoNCE(NET, spherical=False)),
    "no dropout": (HeadError, "no nn.Dropout", lambda: b.MCDropout(NET)),
    "samples": (InputError, "n_samples", lambda: MCInfoNCELoss(n_samples=0)),
    "no pairs": (LabelError, "MPerClass", lambda: positive_pairs(torch.arange(3))),
    "rows": (InputError, "v has 2 rows", lambda: check_rows(X, Y, v=torch.ones(2, 2))),
    "shape": (InputError, r"\(60,\)", lambda: check_rows(X[:, 0], Y)),
    "members": (InputError, r"\[M, N, Z\]", lambda: align(torch.ones(3, 2))),
    "score": (UnknownNameError, "'entropy'", lambda: disagreement(X[None], "variance")),
    "kind": (UnknownNameError, "'mixture'", lambda: EnsembleLoss(2, 2, kind="sum")),
    "labels": (InputError, "6 rows", lambda: LinearCrossEntropyLoss(5, 3)(X, Y[:6])),
    "ranks": (InputError, "one number", lambda: ranking_loss(X[:, :1], Y.double(), 0.1)),
    "predicted": (InputError, "one number", lambda: LossPredictionLoss(5, 3)(X, Y, X[:, :1])),
    "factor": (InputError, "factor has", lambda: HETXLLoss(5, 3)(X, Y, X[:4, :, None], X)),
    "learning rate": (InputError, "learning_rate", lambda: Training(learning_rate=0.0)),
    "weight decay": (InputError, "weight_decay", lambda: Training(weight_decay=-0.1)),
}


@pytest.mark.parametrize(("error", "text", "call"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(error, text, call):
    with pytest.raises(error, match=text):
        call()
