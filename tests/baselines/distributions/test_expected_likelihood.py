from __future__ import annotations

import numpy as np
import pytest
import torch
from packaging.version import Version

from baselines.distributions import (
    VonMisesFisher,
    log_expected_likelihood,
    pairwise_log_expected_likelihood,
)
from laplace_metric.distributions import Gaussian


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=g, dtype=dtype), dim=-1)


def batch(b: int, dimension: int, seed: int, dtype: torch.dtype = torch.float64) -> VonMisesFisher:
    g = torch.Generator().manual_seed(seed)
    k = 30 * torch.rand(b, generator=g, dtype=dtype)
    return VonMisesFisher(unit(b, dimension, seed=seed, dtype=dtype), k)


@pytest.mark.parametrize("kappas", [(3.0, 8.0), (0.0, 5.0), (6.0, 6.0)])
@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_quadrature_on_the_sphere(kappas, sign):
    """Equal, opposite and independent directions."""
    mu = unit(3)
    nu = sign * mu if sign else unit(3, seed=1)
    p, q = VonMisesFisher(mu, kappas[0]), VonMisesFisher(nu, kappas[1])
    turn = torch.arange(200, dtype=torch.float64) * (2 * np.pi / 200)
    height, weight = map(torch.from_numpy, np.polynomial.legendre.leggauss(120))
    ring = (1 - height**2).sqrt()[:, None]
    parts = ring * turn.cos(), ring * turn.sin(), height[:, None].expand(-1, 200)
    x, w = torch.stack(parts, -1).flatten(0, 1), weight.repeat_interleave(200) * 2 * np.pi / 200
    oracle = ((p.log_prob(x) + q.log_prob(x)).exp() * w).sum().log()
    torch.testing.assert_close(log_expected_likelihood(p, q), oracle, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_pairwise_is_the_broadcast_form(dtype):
    p, q = batch(5, 16, 0, dtype), batch(7, 16, 1, dtype)
    wide = VonMisesFisher(p.loc[:, None], p.concentration[:, None])
    pairs = pairwise_log_expected_likelihood(p, q)
    assert pairs.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(pairs, log_expected_likelihood(wide, q), rtol=0, atol=tolerance)
    torch.testing.assert_close(pairs.T, pairwise_log_expected_likelihood(q, p))


def test_gaussians_match_the_normal_density_of_the_difference():
    g = torch.Generator().manual_seed(0)
    p, q = (
        Gaussian(*(torch.rand(b, 6, generator=g, dtype=torch.float64) for _ in range(2)))
        for b in (4, 3)
    )
    spread = (p.variance[:, None] + q.variance).sqrt()
    oracle = torch.distributions.Normal(q.mean, spread).log_prob(p.mean[:, None]).sum(-1)
    torch.testing.assert_close(pairwise_log_expected_likelihood(p, q), oracle)
    torch.testing.assert_close(
        log_expected_likelihood(p.select(slice(3)), q), oracle[:3].diagonal()
    )


def cancelling():
    """Two opposite directions and a third, with their concentrations."""
    mu = unit(4)
    loc = torch.stack([mu, -mu, unit(4, seed=2)]).requires_grad_()
    return loc, torch.tensor([5.0, 5.0, 2.0], dtype=torch.float64, requires_grad=True)


def pairs(loc, k):
    p = VonMisesFisher(loc, k, validate_args=False)
    return pairwise_log_expected_likelihood(p, p)


@pytest.mark.xfail(
    Version(torch.__version__) >= Version("2.14"),
    reason="clamp_min has no gradient at its bound from torch 2.14 on, so none where they cancel",
    strict=True,
)
def test_the_slope_where_the_directions_cancel():
    loc, k = cancelling()
    # 2 k^2 nu / (2 D) and its mirror: the slope in mu of (k^2/D) (1 + cos), for both orders
    (slope,) = torch.autograd.grad(pairs(loc, k)[0, 1], loc)
    torch.testing.assert_close(slope[0], -loc.detach()[0] * 25 / 4, rtol=1e-9, atol=1e-9)


def test_gradients_are_finite_also_where_the_directions_cancel():
    loc, k = cancelling()

    def aligned(loc, k):
        p = VonMisesFisher(loc, k, validate_args=False)
        return log_expected_likelihood(p, VonMisesFisher(-loc.flip(0), k, validate_args=False))

    (to_loc,) = torch.autograd.grad(pairs(loc, k).sum(), loc)
    assert bool(torch.isfinite(to_loc).all())
    other = unit(3, 4, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(pairs, (other, k))
    assert torch.autograd.gradgradcheck(pairs, (other, k))
    assert bool(torch.isfinite(torch.autograd.grad(aligned(loc, k).sum(), k)[0]).all())
