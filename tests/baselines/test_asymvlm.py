"""The pairwise log density against the distribution, its moments by draws, and what is learnt."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from baselines import AsymVLM
from baselines.asymvlm import (
    AsymmetricContrastLoss,
    PowerSphericalDirections,
    power_spherical_log_likelihood,
)
from baselines.base import Training
from baselines.distributions import PowerSpherical
from laplace_metric.errors import InputError, UnknownNameError
from tests.baselines.labelled_points import on_vectors

F64 = torch.float64


def unit(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    return nn.functional.normalize(torch.randn(n, size, generator=g, dtype=F64), dim=1)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 60), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_every_pair_against_the_distribution(size, kappa, seed):
    mu, x = unit(3, size, seed), unit(4, size, seed + 1)
    k = kappa * torch.tensor([1.0, 2.0, 0.5], dtype=F64)
    found = power_spherical_log_likelihood(k[:, None] * mu, x)
    expected = PowerSpherical(mu[:, None], k[:, None]).log_prob(x)
    near = (mu @ x.T + 1) / 2 > 1e-5
    torch.testing.assert_close(found[near], expected[near], rtol=1e-9, atol=1e-9)
    assert bool(found.isfinite().all())


def test_the_opposite_point_has_little_density_and_a_gradient():
    eta = torch.tensor([[3.0, 0.0]], dtype=F64, requires_grad=True)
    value = power_spherical_log_likelihood(eta, torch.tensor([[-1.0, 0.0]], dtype=F64))
    value.sum().backward()
    assert float(value.detach()) < -30
    assert bool(eta.grad.isfinite().all())


@pytest.mark.parametrize(("size", "kappa"), [(2, 0.5), (5, 3.0), (40, 25.0)])
def test_moments_are_those_of_draws(size, kappa):
    mu = unit(1, size, 0)
    law = PowerSphericalDirections(mu, torch.tensor([kappa], dtype=F64))
    z = law.sample(200_000, 0)[:, 0]
    torch.testing.assert_close(z.norm(dim=1), torch.ones(200_000, dtype=F64))
    drawn = (z - mu).square().mean(0)
    torch.testing.assert_close(law.variance[0], drawn, rtol=0.02, atol=2e-3)
    resultant = float((z @ mu[0]).mean())
    k = float(law.concentration)
    assert resultant * (size - resultant**2) / (1 - resultant**2) == pytest.approx(k, rel=0.02)
    both = PowerSphericalDirections.concatenate([law, law.select(slice(0, 1))])
    torch.testing.assert_close(both.variance, law.variance.expand(2, -1))


def test_the_loss_is_infonce_in_both_directions():
    points, labels = unit(5, 3, 0), torch.tensor([0, 0, 1, 1, 1])
    eta = 4 * unit(5, 3, 1)
    s = 2 * power_spherical_log_likelihood(eta, points)
    total = []
    for similarity in (s, s.T):
        pairs = []
        for i in range(5):
            others = [j for j in range(5) if labels[j] != labels[i]]
            for j in range(5):
                if j != i and labels[j] == labels[i]:
                    logits = torch.stack([similarity[i, j], *similarity[i, others]])
                    pairs.append(-logits.log_softmax(0)[0])
        total.append(torch.stack(pairs).mean())
    loss = AsymmetricContrastLoss(2.0).double()(eta, labels, points)
    torch.testing.assert_close(loss, torch.stack(total).mean())


@pytest.fixture(scope="module")
def half_mixed():
    """Two classes that are apart where the third number is positive, and mixed elsewhere."""
    g = torch.Generator().manual_seed(0)
    x = nn.functional.normalize(torch.randn(200, 3, generator=g), dim=1)
    clean = x[:, 2] > 0
    labels = torch.where(clean, x[:, 0] > 0, torch.rand(200, generator=g) > 0.5).long()
    return x, labels, clean


def test_mixed_inputs_are_the_uncertain_ones(half_mixed):
    x, labels, clean = half_mixed
    method = on_vectors(AsymVLM, x, labels, spherical=True, hidden=32, training=Training(epochs=60))
    assert method.losses_[-1] < method.losses_[0]
    e = method(x)
    assert float(e.uncertainty[~clean].median()) > 1.5 * float(e.uncertainty[clean].median())
    torch.testing.assert_close(e.uncertainty, 1 / e.distribution.power)
    eta = e.mean * e.distribution.power[:, None]
    density = power_spherical_log_likelihood(eta[:20], x)
    assert torch.equal(density.argmax(1), (e.mean[:20] @ x.T).argmax(1))


def test_of_the_features_has_their_size(model, loader, data):
    method = AsymVLM(model, on="features", hidden=8, training=Training(epochs=1)).fit(loader)
    assert method(data[0]).mean.shape == (60, 8)


def test_what_it_refuses(model):
    with pytest.raises(InputError, match="spherical=False"):
        AsymVLM(model, spherical=False)
    with pytest.raises(InputError, match="frozen=False"):
        AsymVLM(model, frozen=False)
    with pytest.raises(InputError, match="hidden=0"):
        AsymVLM(model, hidden=0)
    with pytest.raises(UnknownNameError, match="on='logits'"):
        AsymVLM(model, on="logits")
    with pytest.raises(InputError, match=r"pass \[Q, D\] and \[G, D\]"):
        power_spherical_log_likelihood(torch.ones(2, 3), torch.ones(2, 4))
