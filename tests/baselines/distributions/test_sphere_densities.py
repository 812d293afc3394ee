"""Every density on the sphere integrates to 1 and is the density of its draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import kl_divergence

from baselines.distributions import (
    HypersphericalUniform,
    NonIsotropicVonMisesFisher,
    PowerSpherical,
    SphericalGaussian,
    SphericalLaplace,
    VonMisesFisher,
)
from baselines.distributions.spherical_noise import log_radial_integral


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    z = torch.randn(*shape, generator=generator(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=-1)


def grid(dimension: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and weights on S^1 (trapezium) or S^2 (Gauss-Legendre in z)."""
    turn = torch.arange(400, dtype=torch.float64) * (2 * np.pi / 400)
    circle = torch.stack([turn.cos(), turn.sin()], -1)
    if dimension == 2:
        return circle, torch.full((400,), 2 * np.pi / 400, dtype=torch.float64)
    height, weight = map(torch.from_numpy, np.polynomial.legendre.leggauss(200))
    ring = (1 - height**2).sqrt()[:, None, None] * circle
    x = torch.cat([ring, height[:, None, None].expand(-1, 400, 1)], -1)
    return x.flatten(0, 1), weight.repeat_interleave(400) * 2 * np.pi / 400


def scales(dimension: int) -> torch.Tensor:
    return torch.tensor([0.7, 3.0, 1.5], dtype=torch.float64)[:dimension]


DENSITIES = {
    "vmf": lambda d: VonMisesFisher(unit(d), 7.0),
    "uniform": lambda d: HypersphericalUniform(d, dtype=torch.float64),
    "power": lambda d: PowerSpherical(unit(d), 5.5),
    "non-isotropic": lambda d: NonIsotropicVonMisesFisher(unit(d), scales(d)),
    "gaussian": lambda d: SphericalGaussian(unit(d), 3.0),
    "wide gaussian": lambda d: SphericalGaussian(unit(d), 0.05),
}


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("name", DENSITIES)
def test_density_integrates_to_one_and_gives_the_moments_of_the_draws(dimension, name):
    p = DENSITIES[name](dimension)
    x, weight = grid(dimension)
    mass = p.log_prob(x).exp() * weight
    assert float(mass.sum()) == pytest.approx(1, abs=1e-10)
    z = p.rsample((40_000,), generator())
    torch.testing.assert_close(z.norm(dim=-1), torch.ones(40_000, dtype=torch.float64))
    exact = torch.cat([mass @ x, (x.T @ (mass[:, None] * x)).flatten()])
    features = torch.cat([z, (z[:, :, None] * z[:, None]).flatten(1)], 1)
    error = (features.mean(0) - exact).abs()
    assert bool((error < 4.5 * features.std(0) / 200).all())


@pytest.mark.parametrize("dimension", [2, 3, 10, 128])
@pytest.mark.parametrize("kappa", [0.0, 1e-6, 4.0, 1e6])
def test_power_spherical_cosine_mean_and_entropy(dimension, kappa):
    p = PowerSpherical(unit(dimension), kappa)
    z = p.sample((10_000,), generator())
    half = 1 - (z - p.loc).square().sum(-1).numpy() / 4  # (1 + mu.z) / 2
    a, b = (dimension - 1) / 2 + kappa, (dimension - 1) / 2
    assert stats.kstest(1 - half, stats.beta(b, a).cdf).pvalue > 1e-3
    assert float(p.mean @ p.loc) == pytest.approx(2 * a / (a + b) - 1, rel=1e-9, abs=1e-12)
    log = p.log_prob(z)
    assert float((p.entropy() + log.mean()).abs()) < 4 * float(log.std()) / 100 + 1e-7


def test_power_spherical_gradients_and_divergence():
    n = 40_000
    mu = unit(5).expand(n, -1)
    k = torch.full((n,), 3.0, dtype=torch.float64, requires_grad=True)
    w = (PowerSpherical(mu, k).rsample((), generator()) * mu).sum(-1)
    (slope,) = torch.autograd.grad(w.sum(), k)
    exact = 4 / 7**2  # d/dk k / (D - 1 + k)
    assert float((slope.mean() - exact).abs()) < 4 * float(slope.std()) / n**0.5
    p, u = PowerSpherical(unit(5), 3.0), HypersphericalUniform(5, dtype=torch.float64)
    z = p.sample((n,), generator())
    difference = p.log_prob(z) - u.log_prob(z)
    error = float((kl_divergence(p, u) - difference.mean()).abs())
    assert error < 4 * float(difference.std()) / n**0.5
    assert float(kl_divergence(PowerSpherical(unit(5), 0.0), u)) == pytest.approx(0, abs=1e-12)


def test_uniform_is_uniform():
    u = HypersphericalUniform(3, (2,), dtype=torch.float64)
    z = u.expand((4, 2)).sample((5000,), generator())
    assert z.shape == (5000, 4, 2, 3)
    assert stats.kstest(z[:, 0, 0, 1].numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert float(u.entropy()[0]) == pytest.approx(np.log(4 * np.pi))
    assert torch.equal(u.mean, torch.zeros(2, 3, dtype=torch.float64))
    torch.testing.assert_close(u.variance, torch.full((2, 3), 1 / 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="dimension"):
        HypersphericalUniform(1)


def test_non_isotropic_density_in_high_dimension_by_monte_carlo():
    """``E_uniform[p] area = 1``; gradients reach both parameters; batches broadcast."""
    mu = unit(2, 6).requires_grad_()
    k = (0.5 + torch.rand(6, dtype=torch.float64, generator=generator())).requires_grad_()
    p = NonIsotropicVonMisesFisher(mu, k)
    u = HypersphericalUniform(6, dtype=torch.float64)
    z = u.sample((50_000, 1), generator())
    ratio = (p.log_prob(z) - u.log_prob(z)).exp().detach()
    assert bool(((ratio.mean(0) - 1).abs() < 4 * ratio.std(0) / 50_000**0.5).all())
    z = p.expand((3, 2)).rsample((4,), generator())
    assert z.shape == (4, 3, 2, 6)
    (z * unit(6, seed=2)).sum().backward()
    assert bool((mu.grad.abs().sum() > 0) & (k.grad.abs().sum() > 0))
    with pytest.raises(ValueError, match="concentration"):
        NonIsotropicVonMisesFisher(unit(2), torch.tensor([1.0, 0.0]).double(), validate_args=True)


@pytest.mark.parametrize("n", [1, 2, 9, 127, 1023])
@pytest.mark.parametrize("a", [-300.0, -40.0, -3.0, 0.0, 2.0, 30.0, 1000.0])
def test_radial_integral(n, a):
    mode = (a + np.hypot(a, 2 * n**0.5)) / 2 if a > 0 else 2 * n / (np.hypot(a, 2 * n**0.5) - a)
    log = lambda r: n * np.log(r) - (r - a) ** 2 / 2  # noqa: E731
    width = 1 / np.sqrt(1 + n / mode**2)
    ends = max(0.0, mode - 12 * width), mode + 12 * width, mode + 60 * width
    f = lambda r: np.exp(log(r) - log(mode)) if r > 0 else 0.0  # noqa: E731
    area = sum(
        integrate.quad(f, lo, hi, epsabs=0, epsrel=1e-12, limit=200)[0]
        for lo, hi in ((ends[0], mode), (mode, ends[1]), (ends[1], ends[2]))
    )
    value = log_radial_integral(torch.tensor([a], dtype=torch.float64), n)
    assert float(value) == pytest.approx(np.log(area) + log(mode), rel=1e-11, abs=1e-9)


def test_laplace_noise():
    """Small noise: the tangent displacement is Laplace noise of variance 2/k^2 in each axis."""
    mu = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    z = SphericalLaplace(mu, 1e4).sample((20_000,), generator())
    assert stats.kstest(z[:, 0].numpy() * 1e4, stats.laplace.cdf).pvalue > 1e-3
    torch.testing.assert_close(z.norm(dim=-1), torch.ones(20_000, dtype=torch.float64))
    g = SphericalGaussian(mu, 1e8).sample((20_000,), generator())
    assert stats.kstest(g[:, 0].numpy() * 1e4, stats.norm.cdf).pvalue > 1e-3


@pytest.mark.parametrize("family", [PowerSpherical, SphericalGaussian, SphericalLaplace])
def test_draws_follow_the_generator_dtype_and_shape(family):
    p = family(unit(3, 4).float(), torch.tensor([1.0, 2.0, 3.0]))
    state = torch.get_rng_state()
    z = p.rsample((5, 2), generator(1))
    assert z.shape == (5, 2, 3, 4)
    assert z.dtype == torch.float32
    assert torch.equal(z, p.sample((5, 2), generator(1)))
    assert torch.equal(state, torch.get_rng_state())
    k = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    family(p.loc, k).rsample((), generator())[:, 0].sum().backward()
    assert bool((k.grad != 0).all())
    with pytest.raises(ValueError, match="concentration"):
        family(p.loc, torch.tensor(-1.0), validate_args=True)
