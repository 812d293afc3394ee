from __future__ import annotations

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from baselines.distributions.vmf_normalizer import (
    log_vmf_normalizer,
    log_vmf_normalizer_of_square,
    log_vmf_peak,
    mean_resultant_length,
    mean_resultant_slope,
)
from laplace_metric.distributions import vmf_concentration

DIMENSIONS = [2, 3, 4, 7, 10, 16, 49, 50, 51, 128, 1024, 4096]
KAPPAS = [0.0, 1e-30, 1e-6, 1e-2, 0.5, 3.0, 17.0, 60.0, 300.0, 3e3, 1e5, 1e6]


def exact(dimension: int, kappa: float) -> tuple[float, float, float, float]:
    """log C, A, A' and 1 - A by mpmath."""
    with mpmath.workdps(50):
        v, k, half = mpmath.mpf(dimension) / 2 - 1, mpmath.mpf(kappa), mpmath.mpf(dimension) / 2
        if kappa == 0:
            log_c = mpmath.loggamma(half) - mpmath.log(2) - half * mpmath.log(mpmath.pi)
            return float(log_c), 0.0, 1 / dimension, 1.0
        bessel = mpmath.besseli(v, k)
        a = mpmath.besseli(v + 1, k) / bessel
        log_c = v * mpmath.log(k) - half * mpmath.log(2 * mpmath.pi) - mpmath.log(bessel)
        slope = 1 - a * a - (dimension - 1) * a / k
        return float(log_c), float(a), float(slope), float(1 - a)


@pytest.fixture(scope="module")
def table() -> dict[int, torch.Tensor]:
    """[K, 4] of every dimension."""
    rows = {d: [exact(d, k) for k in KAPPAS] for d in DIMENSIONS}
    return {d: torch.tensor(r, dtype=torch.float64) for d, r in rows.items()}


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_normalizer_matches_mpmath(table, dimension, dtype, tolerance):
    k = torch.tensor(KAPPAS, dtype=torch.float64).to(dtype)
    oracle = table[dimension][:, 0]
    value = log_vmf_normalizer(k, dimension)
    assert value.dtype == dtype
    error = (value.double() - oracle).abs() / oracle.abs().clamp_min(1)
    assert float(error.max()) < tolerance


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_resultant_and_slope_match_mpmath(table, dimension):
    k = torch.tensor(KAPPAS, dtype=torch.float64)
    oracle = table[dimension]
    a, slope = mean_resultant_length(k, dimension), mean_resultant_slope(k, dimension)
    torch.testing.assert_close(a, oracle[:, 1], rtol=1e-13, atol=0)
    torch.testing.assert_close(slope, oracle[:, 2], rtol=2e-12, atol=0)
    peak = log_vmf_peak(k, dimension)
    close = oracle[:, 0] + k
    assert float(((peak - close).abs() / close.abs().clamp_min(1)).max()) < 1e-9  # of the oracle


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_autograd_gives_the_exact_derivatives(table, dimension):
    """First -A, second -A', to relative 1e-8 and better."""
    k = torch.tensor(KAPPAS, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(log_vmf_normalizer(k, dimension).sum(), k, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), k)
    oracle = table[dimension]
    torch.testing.assert_close(first.detach(), -oracle[:, 1], rtol=1e-12, atol=0)
    torch.testing.assert_close(second, -oracle[:, 2], rtol=1e-11, atol=0)


@pytest.mark.parametrize("dimension", [2, 3, 10, 60])
@pytest.mark.parametrize(
    "function", [log_vmf_normalizer, mean_resultant_length, log_vmf_normalizer_of_square]
)
def test_gradients_of_both_orders(dimension, function):
    k = torch.tensor([0.05, 1.0, 20.0, 400.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: function(x, dimension), k)
    assert gradgradcheck(lambda x: function(x, dimension), k)


def test_concentration_nearly_inverts_the_resultant():
    """Sra's formula: to 2 % in 50 dimensions; 0 and infinity at the ends."""
    k = torch.tensor([1.0, 20.0, 300.0], dtype=torch.float64)
    torch.testing.assert_close(
        vmf_concentration(mean_resultant_length(k, 50), 50), k, rtol=0.02, atol=0
    )
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert vmf_concentration(ends, 5).tolist() == [0.0, float("inf")]
