"""The log marginal likelihood of a fit, against the loss and the posterior written out."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import (
    InputError,
    LabelError,
    LaplaceMetricWarning,
    NegativeCurvatureWarning,
    NonFiniteError,
    WeightsChangedError,
)

D, Z, N = 4, 3, 24
LOSSES = list(itertools.product(["euclidean", "arccos"], ["fixed", "positives", "full"]))


def data() -> tuple[Tensor, Tensor]:
    """Classes of several sizes, two of one member."""
    g = torch.Generator().manual_seed(1)
    y = torch.tensor([0] * 9 + [1] * 7 + [2] * 6 + [3, 4])
    centres = torch.randn(5, D, generator=g, dtype=torch.float64)
    return centres[y] + torch.randn(N, D, generator=g, dtype=torch.float64), y


def fitted(distance: str, hessian: str, **settings) -> LaplaceEmbedder:
    torch.manual_seed(0)
    head = nn.Linear(D, Z).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        embedder = LaplaceEmbedder(head, distance=distance, hessian=hessian, **settings)
        return embedder.fit([data()], progress=False)


def evidence(embedder: LaplaceEmbedder, *given, **options) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NegativeCurvatureWarning)
        return embedder.log_marginal_likelihood(*given, progress=False, **options)


def loss(z: Tensor, y: Tensor, distance: str, hessian: str) -> Tensor:
    """Mean over positive pairs minus mean over negative ones, pair by pair; i = j is a pair."""
    inside, across = [], []
    for i, j in itertools.product(range(len(z)), repeat=2):
        if distance == "arccos":
            apart = 1 - torch.cosine_similarity(z[i], z[j], dim=0)
        else:
            apart = (z[i] - z[j]).square().sum() / 2
        (inside if y[i] == y[j] else across).append(apart)
    attract = torch.stack(inside).mean()
    return attract if hessian == "positives" else attract - torch.stack(across).mean()


def brute_force(embedder: LaplaceEmbedder, distance: str, hessian: str) -> float:
    """``-n L + P/2 log tau - tau/2 |theta|^2 - log det(n H + tau I) / 2``."""
    x, y = data()
    posterior, head = embedder.posterior_, embedder.model
    n, tau = posterior.n_effective, posterior.prior_precision
    with torch.no_grad():
        total = loss(head(x), y, distance, hessian)
        theta = torch.cat([head.weight.flatten(), head.bias])
    curvature = posterior.curvature.to_dense()
    precision = n * curvature + tau * torch.eye(len(theta), dtype=torch.float64)
    prior = len(theta) * math.log(tau) - tau * float(theta.square().sum())
    return -n * float(total) + (prior - float(torch.logdet(precision))) / 2


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize(("distance", "hessian"), LOSSES)
def test_it_is_that_of_all_pairs_and_of_the_posterior_written_out(distance, hessian, structure):
    embedder = fitted(distance, hessian, structure=structure)
    wanted = brute_force(embedder, distance, hessian)
    assert evidence(embedder, *data()) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("hessian", ["positives", "full"])
def test_the_loss_is_the_one_whose_curvature_is_fitted(hessian):
    """Of a linear head and squared distances, the Gauss-Newton matrix is the Hessian itself."""
    x, y = data()
    embedder = fitted("euclidean", hessian, structure="full")

    def of_weights(theta: Tensor) -> Tensor:
        weight, bias = theta[: Z * D].view(Z, D), theta[Z * D :]
        return loss(x @ weight.mT + bias, y, "euclidean", hessian)

    theta = embedder.posterior_.mean
    exact = torch.func.hessian(of_weights)(theta)
    values = torch.linalg.eigvalsh(exact).abs()  # positivity="absolute"
    found = torch.linalg.eigvalsh(embedder.hessian_.to_dense())
    torch.testing.assert_close(found, values.sort().values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_neither_batches_nor_their_order_nor_the_temperature_change_it(distance):
    x, y = data()
    embedder = fitted(distance, "fixed")
    whole = evidence(embedder, x, y)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    batches = list(zip(x[order].split(5), y[order].split(5), strict=True))
    assert evidence(embedder, batches) == pytest.approx(whole, rel=1e-12)
    warm = fitted(distance, "fixed", temperature=16.0)
    assert evidence(warm, x, y) == pytest.approx(whole, rel=1e-12)


def test_its_maximum_over_priors_is_that_of_tune_prior():
    x, y = data()
    embedder = fitted("euclidean", "positives")
    tau = embedder.tune_prior()
    best = evidence(embedder, x, y)
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = fitted("euclidean", "positives", prior_precision=factor * tau)
        assert evidence(other, x, y) < best


def test_a_head_that_separates_the_classes_has_more():
    """Of two heads with weights of one length, the one that brings a class together."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = torch.randn(60, 6, generator=g, dtype=torch.float64)
    x[:, :3] += 6 * torch.eye(3, dtype=torch.float64)[y]
    heads = [nn.Linear(6, 3, bias=False).double() for _ in range(2)]
    for head, part in zip(heads, (slice(0, 3), slice(3, 6)), strict=True):
        with torch.no_grad():
            head.weight.zero_()[:, part] = torch.eye(3, dtype=torch.float64)
    found = []
    for head in heads:
        embedder = LaplaceEmbedder(head, distance="arccos", hessian="fixed", positivity="clip")
        found.append(evidence(embedder.fit([(x, y)], progress=False), x, y))
    assert found[0] > found[1]


def test_what_has_no_such_evidence_is_refused():
    x, y = data()
    with pytest.raises(InputError, match="margin=1.5: which pairs"):
        evidence(fitted("euclidean", "full", margin=1.5), x, y)
    embedder = fitted("arccos", "fixed")
    with pytest.raises(LabelError, match="inputs.*one class"):
        evidence(embedder, x, torch.zeros(N, dtype=torch.int64))
    with pytest.raises(LabelError):
        evidence(embedder, x)
    broken = x.clone()
    broken[7] = torch.nan
    with pytest.raises(NonFiniteError, match="NaN or infinity.*row 7"):
        evidence(embedder, list(zip(broken.split(5), y.split(5), strict=True)))
    with torch.no_grad():
        embedder.model.weight.mul_(2)
    with pytest.raises(WeightsChangedError):
        evidence(embedder, x, y)


def test_evidence_of_a_negative_curvature_warns():
    embedder = fitted("euclidean", "full")
    assert embedder.hessian_.negative_fraction >= 0.2
    with pytest.warns(NegativeCurvatureWarning, match="evidence.*no model"):
        embedder.log_marginal_likelihood(*data())
