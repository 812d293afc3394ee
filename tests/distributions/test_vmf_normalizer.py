from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from laplace_metric.distributions import (
    log_vmf_normalizer,
    mean_resultant_length,
    vmf_concentration,
)
from laplace_metric.distributions._vmf_normalizer import (
    concentration_of,
    log_vmf_normalizer_of_square,
    log_vmf_peak,
    mean_resultant_slope,
)
from laplace_metric.errors import InputError

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


@settings(max_examples=40, deadline=None)
@given(dimension=st.integers(2, 4096), log10=st.floats(-3, 5))
def test_concentration_inverts_the_resultant(dimension, log10):
    k = torch.tensor([10.0**log10], dtype=torch.float64)
    r = mean_resultant_length(k, dimension)
    conditioning = float(1e-14 / (mean_resultant_slope(k, dimension) * k))
    back = concentration_of(r, dimension)
    torch.testing.assert_close(back, k, rtol=1e-10 + conditioning, atol=0)


def test_inverse_at_the_ends_and_its_gradient():
    r = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert concentration_of(r, 5).tolist() == [0.0, float("inf")]
    r = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: concentration_of(x, 5), r)
    assert gradgradcheck(lambda x: concentration_of(x, 5), r)
    torch.testing.assert_close(vmf_concentration(r, 50), concentration_of(r, 50), rtol=0.02, atol=0)


def test_vmap_and_shapes():
    k = torch.rand(3, 4, dtype=torch.float64)
    assert log_vmf_normalizer(k, 5).shape == (3, 4)
    slope = torch.func.vmap(torch.func.grad(lambda x: log_vmf_normalizer(x, 5)))(k[0])
    torch.testing.assert_close(slope, -mean_resultant_length(k[0], 5))


@pytest.mark.parametrize("dimension", [1, 2.0, -3])
def test_bad_dimension(dimension):
    with pytest.raises(InputError, match="dimension"):
        log_vmf_normalizer(torch.ones(2), dimension)


def test_bad_concentration():
    with pytest.raises(InputError, match="concentration must be a floating tensor"):
        log_vmf_normalizer(torch.ones(2, dtype=torch.int64), 3)
