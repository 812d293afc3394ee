"""The closed-form covariance of every head x structure is J S J^T, also between two inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.distributions import DenseCovariance, DiagonalCovariance
from laplace_metric.distributions._covariance import RotatedCovariance
from laplace_metric.laplace._predictive_covariance import covariance

D, Z = 5, 3
HEADS = {
    "linear": lambda: nn.Linear(D, Z),
    "no bias": lambda: nn.Linear(D, Z, bias=False),
    "relu": lambda: nn.Sequential(nn.Linear(D, 6), nn.ReLU(), nn.Linear(6, Z)),
    "deep": lambda: nn.Sequential(
        nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, Z)
    ),
    "batch norm": lambda: nn.Sequential(nn.Linear(D, Z), nn.BatchNorm1d(Z)),
}
CASES = [
    (head, structure)
    for head in HEADS
    for structure in ("diag", "kron", "full")
    if (head, structure) != ("batch norm", "kron")
]
KINDS = {
    ("linear", "diag"): DiagonalCovariance,
    ("linear", "kron"): RotatedCovariance,
    ("linear", "full"): DenseCovariance,
    ("relu", "diag"): DenseCovariance,
}


def fitted(head: str, structure: str, **settings) -> tuple[LaplaceEmbedder, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(HEADS[head]()).double().eval()
    x, y = torch.randn(40, D, dtype=torch.float64), torch.arange(40) % 4
    options = {"hessian": "positives", "n_effective": 200.0, **settings}
    embedder = LaplaceEmbedder(model, head=model[0], structure=structure, **options)
    return embedder.fit([(x, y)], progress=False), x


def dense(embedder: LaplaceEmbedder, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    posterior, jacobian = embedder.posterior_, embedder.fitted_.jacobian
    h = posterior.curvature.to_dense()
    precision = posterior.n_effective * h + posterior.prior_precision * torch.eye(len(h))
    scaled = posterior.temperature * torch.linalg.inv(precision)
    return jacobian.jacobian(x) @ scaled @ jacobian.jacobian(y).mT


@pytest.mark.parametrize(("head", "structure"), CASES)
def test_covariance_is_j_s_jt(head, structure):
    embedder, x = fitted(head, structure, distance="euclidean")
    arguments = (embedder.fitted_.jacobian, embedder.posterior_)
    ours = covariance(*arguments, x)
    torch.testing.assert_close(ours.dense(), dense(embedder, x, x))
    other = x.flip(0)
    torch.testing.assert_close(covariance(*arguments, x, other).dense(), dense(embedder, x, other))
    torch.testing.assert_close(embedder(x).variance, ours.diagonal())
    if (head, structure) in KINDS:
        assert type(ours) is KINDS[head, structure]


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize(("head", "structure"), CASES)
def test_marginal_draws_and_round_trip(head, structure, distance, tmp_path):
    embedder, x = fitted(head, structure, distance=distance, prior_precision=1e6)  # delta method
    embedding = embedder(x)
    draws = embedding.sample(40_000, torch.Generator().manual_seed(1))
    spread = (draws - embedding.mean).square().mean(0).sum(-1)
    torch.testing.assert_close(spread, embedding.uncertainty, rtol=0.06, atol=0)
    embedder.save(tmp_path / "saved")
    loaded = LaplaceEmbedder.load(tmp_path / "saved", embedder.model)
    assert torch.equal(loaded(x).variance, embedding.variance)
    seeds = [torch.Generator().manual_seed(2) for _ in range(2)]
    assert torch.equal(*(e.sample(x, 3, g) for e, g in zip((embedder, loaded), seeds, strict=True)))
    assert type(loaded.hessian_.basis) is type(embedder.hessian_.basis)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_parts_of_a_batch_are_the_batch(structure):
    embedder, x = fitted("linear", structure)
    whole = embedder(x)
    joined = type(whole).concatenate([embedder(x[:7]), embedder(x[7:])])
    torch.testing.assert_close(joined.variance, whole.variance)
    torch.testing.assert_close(whole[torch.tensor([3, 1])].variance, whole.variance[[3, 1]])
    torch.testing.assert_close(whole[5].concentration, whole.concentration[5:6])


def batch_matrix(structure: str, loader) -> torch.Tensor:
    torch.manual_seed(0)
    settings = {"hessian": "positives", "structure": structure, "distance": "euclidean"}
    embedder = LaplaceEmbedder(nn.Linear(D, Z).double(), pairs="batch", **settings).fit(
        loader, progress=False
    )
    return embedder.hessian_.to_dense()


def test_batch_mode_is_the_mean_of_the_batches():
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(90, D, generator=g, dtype=torch.float64), torch.arange(90) % 3
    loader = [(x[:60], y[:60]), (x[60:], y[60:])]
    exact = (60 * batch_matrix("full", loader[:1]) + 30 * batch_matrix("full", loader[1:])) / 90
    torch.testing.assert_close(batch_matrix("full", loader), exact)
    torch.testing.assert_close(batch_matrix("kron", loader), exact)  # I (x) A is closed under sums
