from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.distributions.empirical import Empirical
from laplace_metric.distributions import Gaussian, ProjectedNormal, vmf_concentration
from laplace_metric.embedding import Embedding
from laplace_metric.errors import EmptyLoaderError


def projected(z: int, spread: float, b: int = 3, seed: int = 0) -> ProjectedNormal:
    g = torch.Generator().manual_seed(seed)
    loc = torch.randn(b, z, generator=g, dtype=torch.float64)
    s = torch.rand(b, z, generator=g, dtype=torch.float64)
    return ProjectedNormal(loc, spread * s * loc.square().sum(1, keepdim=True))


def jacobian_covariance(p: ProjectedNormal) -> torch.Tensor:
    """The delta method by autograd: J S J^T with J = d(z/|z|)/dz."""

    def direction(z):
        return z / z.norm()

    jacobians = torch.stack([torch.func.jacrev(direction)(z) for z in p.loc])
    return jacobians @ p.covariance.dense() @ jacobians.mT


@settings(max_examples=30, deadline=None)
@given(z=st.integers(1, 6), scale=st.sampled_from([1e-6, 1.0, 1e6]), seed=st.integers(0, 99))
def test_tangent_covariance_is_the_delta_method(z, scale, seed):
    p = projected(z, 0.1, seed=seed)
    p = ProjectedNormal(scale * p.loc, scale**2 * p.covariance.diagonal())
    oracle = jacobian_covariance(p)
    tangent = p.covariance.tangent_diagonal(p.mean) / p.loc.square().sum(1, keepdim=True)
    torch.testing.assert_close(tangent, oracle.diagonal(dim1=1, dim2=2), rtol=1e-9, atol=1e-14)
    assert bool((tangent >= 0).all())


def test_small_spread_matches_samples():
    p = projected(5, 1e-3)
    draws = p.sample(200_000, torch.Generator().manual_seed(0))
    centred = draws - p.mean
    covariance = torch.einsum("nbk,nbl->bkl", centred, centred) / len(draws)
    error = (covariance - jacobian_covariance(p)).flatten(1).norm(dim=1)
    assert float((error / jacobian_covariance(p).flatten(1).norm(dim=1)).max()) < 0.02


@pytest.mark.parametrize(
    ("z", "spread", "tolerance"), [(3, 1e-4, 0.02), (64, 1e-4, 0.02), (256, 3e-3, 0.03)]
)
def test_concentration_is_that_of_samples(z, spread, tolerance):
    p = projected(z, spread)
    draws = p.sample(20_000, torch.Generator().manual_seed(0))
    sampled = vmf_concentration(draws.mean(0).norm(dim=-1), z)
    torch.testing.assert_close(p.concentration, sampled, rtol=tolerance, atol=0)


def test_concentration_limits_and_monotonicity():
    loc = torch.ones(4, 3)
    spread = torch.tensor([0.0, 0.1, 1.0, 100.0])[:, None].expand(4, 3)
    kappa = ProjectedNormal(loc, spread).concentration
    assert torch.isinf(kappa[0])
    assert bool((kappa[1:].diff() < 0).all())
    assert float(kappa[-1]) >= 0


def test_vmf_concentration_matches_the_mean_resultant_length():
    """R = coth(k) - 1/k on the ordinary sphere (Z = 3); Sra's formula is close for all k."""
    kappa = torch.tensor([0.1, 1.0, 10.0, 100.0], dtype=torch.float64)
    resultant = 1 / torch.tanh(kappa) - 1 / kappa
    torch.testing.assert_close(vmf_concentration(resultant, 3), kappa, rtol=0.06, atol=0)


def test_gaussian_moments_and_reproducible_draws():
    g = Gaussian(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.25, 4.0]]))
    draws = g.sample(100_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.mean(0), g.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(draws.var(0), g.variance, rtol=0.02, atol=0)
    assert torch.equal(draws, g.sample(100_000, torch.Generator().manual_seed(0)))
    assert float(g.concentration) == float(ProjectedNormal(g.loc, g.covariance).concentration)


def test_empirical():
    draws = torch.randn(50, 4, 3, generator=torch.Generator().manual_seed(0))
    e = Empirical(draws, spherical=False)
    torch.testing.assert_close(e.mean, draws.mean(0))
    torch.testing.assert_close(e.variance, draws.var(0, correction=0))
    assert e.sample(50) is draws
    resampled = e.sample(7, torch.Generator().manual_seed(1))
    assert resampled.shape == (7, 4, 3)
    for b in range(4):  # each column is resampled from its own draws
        assert bool((resampled[:, b, None] == draws[None, :, b]).all(-1).any(1).all())
    unit = torch.nn.functional.normalize(draws, dim=-1)
    s = Empirical(unit, spherical=True)
    torch.testing.assert_close(s.mean.norm(dim=-1), torch.ones(4))
    torch.testing.assert_close(s.variance.sum(-1), 1 - unit.mean(0).square().sum(-1))
    point = Empirical(unit[:1], spherical=True)
    assert float(point.variance.max()) == 0
    assert torch.equal(point.sample(1)[0], unit[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(torch.randn(5, 3), torch.rand(5, 3)),
        lambda: ProjectedNormal(torch.randn(5, 3), torch.rand(5, 3)),
        lambda: Empirical(torch.randn(6, 5, 3), spherical=False),
    ],
)
def test_select_and_concatenate_are_inverse(make):
    batch = Embedding(make(), torch.arange(5.0))
    joined = Embedding.concatenate([batch[:2], batch[torch.tensor([2, 3, 4])]])
    assert torch.equal(joined.mean, batch.mean)
    assert torch.equal(joined.variance, batch.variance)
    assert torch.equal(joined.uncertainty, torch.arange(5.0))
    assert len(batch[torch.tensor([True, False, True, False, False])]) == 2


def test_uncertainty_is_the_trace_unless_the_method_has_a_score():
    g = Gaussian(torch.zeros(2, 3), torch.tensor([[1.0, 2, 3], [0, 0, 1]]))
    assert torch.equal(Embedding(g).uncertainty, torch.tensor([6.0, 1.0]))
    assert torch.equal(Embedding(g, torch.tensor([7.0, 8.0])).uncertainty, torch.tensor([7.0, 8.0]))
    with pytest.raises(EmptyLoaderError):
        Embedding.concatenate([])
