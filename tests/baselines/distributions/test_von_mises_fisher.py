from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import kl_divergence

from baselines.distributions import VonMisesFisher, tangent
from baselines.distributions.tangent import at_angle
from laplace_metric.distributions._angle_quadrature import Angle


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=g, dtype=dtype), dim=-1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dimension", [2, 3, 5, 10])
@pytest.mark.parametrize("kappa", [0.5, 20.0, 300.0])
def test_density_and_entropy_match_scipy(dimension, kappa):
    mu, x = unit(dimension), unit(7, dimension, seed=1)
    p, oracle = VonMisesFisher(mu, kappa), stats.vonmises_fisher(mu.numpy(), kappa)
    np.testing.assert_allclose(p.log_prob(x), oracle.logpdf(x.numpy()), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(p.entropy(), oracle.entropy(), rtol=1e-10, atol=1e-10)


def test_float32_density_keeps_its_digits_at_large_concentration():
    p = VonMisesFisher(unit(16), 1e6)
    x = p.sample((100,), generator())
    single = VonMisesFisher(p.loc.float(), 1e6).log_prob(x.float())
    torch.testing.assert_close(single.double(), p.log_prob(x), rtol=0, atol=5e-3)


@pytest.mark.parametrize("kappa", [0.0, 1e-6, 0.7, 40.0])
@pytest.mark.parametrize("dimension", [2, 3, 6])
def test_moments_match_samples(dimension, kappa):
    p = VonMisesFisher(unit(dimension), kappa)
    z = p.sample((100_000,), generator())
    error = (z.mean(0) - p.mean).abs()
    assert bool((error < 4.5 * (p.variance / 100_000).sqrt()).all())
    sampled = torch.cov(z.T)
    torch.testing.assert_close(sampled, p.covariance_matrix, rtol=0, atol=6e-3)
    torch.testing.assert_close(p.covariance_matrix.diagonal(), p.variance)
    total = p.variance.sum() + p.mean.square().sum()  # E|z|^2
    assert float(total) == pytest.approx(1, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(
    dimension=st.sampled_from([2, 3, 4, 31, 32, 33, 200]),
    kappa=st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e6]),
    shape=st.sampled_from([(), (1,), (3, 1), (4,)]),
    draws=st.sampled_from([(), (2,), (5, 2)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_draws_have_unit_length_and_shape(dimension, kappa, shape, draws, dtype):
    p = VonMisesFisher(unit(*shape, dimension, dtype=dtype), torch.full((4,), kappa, dtype=dtype))
    z = p.rsample(draws, generator())
    assert z.shape == (*draws, *torch.broadcast_shapes(shape, (4,)), dimension)
    assert z.dtype == dtype
    assert float((z.norm(dim=-1) - 1).abs().max()) < (1e-6 if dtype == torch.float32 else 1e-13)
    assert p.log_prob(z).shape == z.shape[:-1]


@pytest.mark.parametrize(("rows", "columns", "size"), [(40, 3, 2), (3, 5, 33), (2, 30, 17)])
def test_blocks_cover_every_vector(monkeypatch, rows, columns, size):
    """Streams and blocks smaller than the batch give unit vectors at the right angles."""
    monkeypatch.setattr(tangent, "STREAM", 100)
    monkeypatch.setattr(tangent, "BLOCK", 40)
    p = VonMisesFisher(unit(columns, size), torch.full((columns,), 1e8, dtype=torch.float64))
    z = p.sample((rows,), generator())
    assert float((z - p.loc).norm(dim=-1).max()) < 2e-3
    assert torch.equal(z, p.sample((rows,), generator()))
    assert z.flatten(0, 1).unique(dim=0).shape[0] == rows * columns
    right = torch.zeros(rows, columns, dtype=torch.float64)
    noise = at_angle(p.loc, Angle(right, right + 1), generator()).round(decimals=6)
    assert size == 2 or noise.flatten(0, 1).unique(dim=0).shape[0] == rows * columns


def test_draws_do_not_depend_on_the_number_of_threads():
    p = VonMisesFisher(unit(64, 256, dtype=torch.float32), 30.0)
    threads = torch.get_num_threads()
    try:
        draws = []
        for n in (1, 2):
            torch.set_num_threads(n)
            draws.append(p.sample((100,), generator(5)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*draws)


@pytest.mark.parametrize("dimension", [2, 3, 5, 40])
def test_gradient_of_a_placed_vector(dimension):
    """The same generator gives the same noise: finite differences of the draw itself."""
    raw = (3 * unit(3, dimension)).requires_grad_()
    a = torch.rand(2, 3, dtype=torch.float64, generator=generator()) + 0.4
    w, s = a.cos().requires_grad_(), a.sin().requires_grad_()

    def fixed(raw, w, s):
        mu = torch.nn.functional.normalize(raw, dim=-1)
        return at_angle(mu, Angle(w, s), generator(1))

    assert torch.autograd.gradcheck(fixed, (raw, w, s))


@pytest.mark.parametrize("kappa", [0.5, 10.0])
@pytest.mark.parametrize("dimension", [2, 3, 20])
def test_pathwise_gradients_are_those_of_the_mean(dimension, kappa):
    """``E[v.z] = A(k) v.mu``: d/dk and d/dmu along a tangent, within 4 standard errors."""
    n = 40_000
    mu = unit(dimension).expand(n, -1).clone().requires_grad_()
    k = torch.full((n,), kappa, dtype=torch.float64, requires_grad=True)
    v = unit(dimension, seed=3)
    (VonMisesFisher(mu, k).rsample((), generator()) @ v).sum().backward()
    p = VonMisesFisher(mu.detach()[0], kappa)
    along = p.covariance_matrix @ p.loc @ p.loc * (v @ p.loc)  # A' v.mu
    across = v - (v @ p.loc) * p.loc
    for sample, exact in (
        (k.grad, along),
        (mu.grad @ across, p.resultant * across.square().sum()),
    ):
        assert float((sample.mean() - exact).abs()) < 4 * float(sample.std()) / n**0.5


@pytest.mark.parametrize("kappas", [(2.0, 5.0), (0.0, 3.0), (50.0, 0.0), (4.0, 4.0)])
def test_divergence_matches_monte_carlo(kappas):
    p, q = (VonMisesFisher(unit(4, seed=i), k) for i, k in enumerate(kappas))
    z = p.sample((100_000,), generator())
    difference = p.log_prob(z) - q.log_prob(z)
    error = float((kl_divergence(p, q) - difference.mean()).abs())
    assert error < 4 * float(difference.std()) / 1e5**0.5 + 1e-12
    assert float(kl_divergence(p, p)) == pytest.approx(0, abs=1e-12)
