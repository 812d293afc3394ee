"""Arguments of another kind are refused by name, and seeds and NumPy numbers are taken."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
import torch

import baselines
from laplace_metric import Monitor, OnlineLaplace, scale
from laplace_metric._utils.randomness import as_generator, own_randomness
from laplace_metric._utils.validation import (
    as_path,
    as_tensor,
    check_count,
    check_positive,
    check_share,
)
from laplace_metric.errors import InputError
from laplace_metric.models import Call, Precomputed
from laplace_metric.training import train_embedder
from tests.rooms import room

dist = room("laplace_metric.distributions", "baselines.distributions")
ev = room("laplace_metric.evaluation")

X = torch.ones(4, 3)
UNIT, K = torch.eye(3), torch.ones(3)
STREAM = {"u": torch.linspace(0, 1, 60)}
BATCH = [(X, torch.arange(4) % 2)]


def square(z, *_):
    return z.square().mean()


def train(loss=square, **options):
    return train_embedder(
        torch.nn.Linear(3, 2), BATCH, loss, **{"epochs": 1, **options}, progress=False
    )


def online(loss=square, model=None, **options):
    method = OnlineLaplace(model or torch.nn.Linear(3, 2))
    return method.fit(BATCH, loss, **{"epochs": 1, "progress": False, **options})


REFUSED = {
    "sparse": lambda: as_tensor("x", X.to_sparse()),
    "meta": lambda: as_tensor("x", X.to("meta")),
    "nested": lambda: as_tensor("x", torch.nested.nested_tensor([X])),
    "quantised": lambda: as_tensor("x", torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)),
    "float8": lambda: as_tensor("x", X.to(torch.float8_e4m3fn)),
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
    "gaussian shapes": lambda: dist.Gaussian(X, X[:, :1]),
    "gaussian sparse": lambda: dist.ProjectedNormal(X, X.to_sparse()),
    "gaussian n": lambda: dist.Gaussian(X, X).sample("3"),
    "covariance square": lambda: dist.DenseCovariance(X),
    "covariance vectors": lambda: dist.DiagonalCovariance(X).apply("x"),
    "empirical": lambda: dist.Empirical(X, False),
    "directions": lambda: dist.Directions(UNIT, K[:2]),
    "resultant": lambda: dist.vmf_concentration(0.5, 3),
    "angle dimension": lambda: dist.sample_angle(K, 1),
    "cap": lambda: dist.in_cap("x", UNIT, 0.5),
    "cap probability": lambda: dist.cap_angle(K, 3, []),
    "score": lambda: dist.unnormalized_vmf_score(UNIT, K, "x"),
    "metric": lambda: ev.bootstrap_interval(None, [1.0]),
    "metric result": lambda: ev.bootstrap_interval(lambda x: x, [1.0, 2.0], n=2),
    "scores": lambda: ev.mann_whitney(torch.ones(0), torch.ones(2)),
    "depths": lambda: ev.retrieval_report(X, [0, 0, 1, 1], recall_ks=3),
    "method": lambda: ev.evaluate_method("x", BATCH, {}),
    "monitor generator": lambda: Monitor(STREAM, window=30, generator="0"),
    "monitor embedder": lambda: Monitor.of("x", BATCH),
    "monitor path": lambda: Monitor(STREAM, window=30).save(5),
    "loss": lambda: train("x"),
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
    "precomputed": lambda: Precomputed()(X.to_sparse()),
    "precomputed size": lambda: Precomputed("3"),
    "method name": lambda: Call(torch.nn.Linear(3, 2), 5),
    "training decay": lambda: baselines.Training(decay="x"),
    "baseline path": lambda: baselines.Deterministic.load(None, torch.nn.Linear(3, 2)),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused_by_name(call):
    with pytest.raises(InputError):
        call()


SEEDED = {
    "monitor": lambda g: Monitor(STREAM, window=30, generator=g).update(STREAM),
    "von Mises-Fisher": lambda g: dist.VonMisesFisher(UNIT, K).sample((2,), g),
    "uniform": lambda g: dist.HypersphericalUniform(3).sample((2,), g),
    "gaussian": lambda g: dist.Gaussian(X, X).sample(2, g),
    "empirical": lambda g: dist.Empirical(torch.rand(3, 2, 2), False).sample(2, g).shape,
    "directions": lambda g: dist.Directions(UNIT, K).sample(2, g),
    "angle": lambda g: dist.sample_angle(K, 4, g).cosine,
    "bootstrap": lambda g: ev.bootstrap_replicates(lambda x: x.mean(), [0, 1, 5], n=5, generator=g),
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


def test_arrays_of_another_layout():
    x = np.arange(12.0).reshape(4, 3)
    for same in (x[::-1].copy()[::-1], x.astype(">f8"), x.astype(np.longdouble), x.tolist()):
        assert torch.equal(Precomputed()(same).double(), torch.from_numpy(x))
