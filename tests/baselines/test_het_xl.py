from __future__ import annotations

import math

import pytest
import torch

from baselines import HETXL
from baselines.base import Training
from baselines.het_xl import HETXLLoss, LowRankCovariance
from laplace_metric.distributions import Gaussian, ProjectedNormal


@pytest.fixture
def covariance():
    g = torch.Generator().manual_seed(0)
    factor = torch.randn(5, 4, 2, generator=g, dtype=torch.float64)
    return LowRankCovariance(factor, 0.1 + torch.rand(5, 4, generator=g, dtype=torch.float64))


def test_low_rank_against_dense(covariance):
    c, v = covariance.dense(), torch.randn(5, 4, dtype=torch.float64)
    expected = [
        [[sum(f[i] * f[j]) + d[i] * (i == j) for j in range(4)] for i in range(4)]
        for f, d in zip(covariance.factor, covariance.diagonal_part, strict=True)
    ]
    torch.testing.assert_close(c, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(covariance.diagonal(), c.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(covariance.apply(v), torch.einsum("bij,bj->bi", c, v))
    torch.testing.assert_close(covariance.logdet(), torch.logdet(c))
    basis = torch.eye(4, dtype=torch.float64)[:, None].expand(4, 5, 4)
    root = covariance.color(basis).permute(1, 2, 0)  # columns are colored unit vectors
    torch.testing.assert_close(root @ root.mT, c)
    picked = LowRankCovariance.concatenate([covariance.select(slice(2)), covariance.select([4])])
    torch.testing.assert_close(picked.dense(), c[[0, 1, 4]])


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(1)
    z = torch.randn(3, 2, generator=g, dtype=torch.float64)
    factor = torch.randn(3, 2, 1, generator=g, dtype=torch.float64)
    diagonal = 0.2 + torch.rand(3, 2, generator=g, dtype=torch.float64)
    loss = HETXLLoss(2, 4, n_samples=5).double()
    with torch.no_grad():
        loss.classifier.weight.copy_(torch.randn(4, 2, generator=g))
        loss.log_temperature.fill_(math.log(0.7))
    return loss, z, torch.tensor([0, 3, 1]), factor, diagonal


def slow_probability(loss, z, label):
    """softmax(W z / tau)_label for one z."""
    tau = loss.log_temperature.exp().item()
    logits = [sum(w * x for w, x in zip(row, z, strict=True)) / tau for row in weights(loss)]
    return math.exp(logits[label]) / sum(map(math.exp, logits))


def weights(loss):
    return loss.classifier.weight.tolist()


def test_loss_against_loops(case):
    loss, z, labels, factor, diagonal = case
    xi, xi_diagonal = loss.noise(factor, torch.Generator().manual_seed(2))
    assert xi_diagonal.shape == (5, 3, 2)  # of the embedding's shape
    total = 0.0
    for b in range(3):
        ps = []
        for s in range(5):
            noisy = [
                z[b, k]
                + factor[b, k, 0] * xi[s, b, 0]
                + diagonal[b, k].sqrt() * xi_diagonal[s, b, k]
                for k in range(2)
            ]
            ps.append(slow_probability(loss, [x.item() for x in noisy], int(labels[b])))
        total -= math.log(sum(ps) / 5) / 3
    assert loss(z, labels, factor, diagonal, (xi, xi_diagonal)).item() == pytest.approx(
        total, rel=1e-12
    )


def test_entropy_against_loops(case):
    loss, z, _, factor, diagonal = case
    xi, xi_diagonal = loss.noise(factor[:1], torch.Generator().manual_seed(0))
    found = loss.entropy(z, factor, diagonal)
    for b in range(3):
        noisy = z[b] + xi[:, 0] @ factor[b].mT + diagonal[b].sqrt() * xi_diagonal[:, 0]
        ps = [sum(slow_probability(loss, row, c) for row in noisy.tolist()) / 5 for c in range(4)]
        assert found[b].item() == pytest.approx(-sum(p * math.log(p) for p in ps), rel=1e-12)
    torch.testing.assert_close(loss.entropy(z[1:], factor[1:], diagonal[1:]), found[1:])


def test_gradients(case):
    loss, z, labels, factor, diagonal = case
    noise = loss.noise(factor, torch.Generator().manual_seed(0))
    inputs = [t.requires_grad_() for t in (z, factor, diagonal)]
    assert torch.autograd.gradcheck(lambda z, v, d: loss(z, labels, v, d, noise), inputs)
    loss(z, labels, factor, diagonal).backward()
    assert loss.log_temperature.grad.abs() > 0


@pytest.mark.parametrize(("spherical", "kind"), [(True, ProjectedNormal), (False, Gaussian)])
def test_distribution(model, loader, data, spherical, kind):
    method = HETXL(model, spherical=spherical, rank=2, training=Training(epochs=2))
    embedding = method.fit(loader, progress=False)(data[0])
    assert isinstance(embedding.distribution, kind)
    dense = embedding.distribution.covariance.dense()
    torch.testing.assert_close(embedding.uncertainty, torch.logdet(dense))
    torch.testing.assert_close(embedding.distribution.loc, method.model(data[0]).detach())
