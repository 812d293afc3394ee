"""The expected squared distance of an uncertain direction from its mean, from one trace."""

from __future__ import annotations

import mpmath
import pytest
import torch

from laplace_metric.distributions import DiagonalCovariance, ProjectedNormal
from laplace_metric.distributions._round_chord import round_chord

TRACES = [1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 3.0, 20.0]


def exact(trace: float, dimension: int) -> float:
    """``2 - 2 E cos`` of a round Gaussian, by Kummer's function to 40 digits."""
    with mpmath.workdps(40):
        s2 = mpmath.mpf(trace) / (dimension - 1)
        z = mpmath.mpf(dimension)
        gammas = mpmath.gamma((z + 1) / 2) / mpmath.gamma(z / 2 + 1)
        kummer = mpmath.hyp1f1(mpmath.mpf("0.5"), z / 2 + 1, -1 / (2 * s2))
        return float(2 - 2 * gammas * kummer / mpmath.sqrt(2 * s2))


def sampled(
    mean: torch.Tensor, variances: torch.Tensor, n: int = 200_000
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard error of ``|z/|z| - u|^2`` over draws, of one Gaussian."""
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(n, len(mean), generator=g, dtype=torch.float64) * variances.sqrt()
    unit = torch.nn.functional.normalize(mean, dim=0)
    # each draw and its mirror image: the first order, which is most of the noise, cancels
    both = [torch.nn.functional.normalize(mean + sign * noise, dim=1) for sign in (1, -1)]
    chord = torch.stack([(z - unit).square().sum(1) for z in both]).mean(0)
    return chord.mean(), chord.std() / n**0.5


@pytest.mark.parametrize(("dimension", "rtol"), [(2, 1e-3), (3, 1e-6), (8, 1e-6), (64, 1e-6)])
def test_it_is_the_exact_integral_of_a_round_covariance(dimension, rtol):
    found = round_chord(torch.tensor(TRACES, dtype=torch.float64), dimension)
    wanted = torch.tensor([exact(t, dimension) for t in TRACES], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=0)


@pytest.mark.parametrize("dimension", [2, 3, 8, 64])
@pytest.mark.parametrize("trace", [1e-4, 0.1, 1.0, 20.0])
def test_it_is_the_mean_over_draws_of_a_round_covariance(dimension, trace):
    mean = torch.arange(1, dimension + 1, dtype=torch.float64)
    variance = trace / (dimension - 1) * mean.square().sum()
    drawn, error = sampled(mean, variance.expand(dimension))
    found = round_chord(torch.tensor(trace, dtype=torch.float64), dimension)
    assert abs(float(found - drawn)) < 4 * float(error) + 1e-3 * float(found) * (dimension == 2)


@pytest.mark.parametrize("trace", [0.1, 0.5, 1.0])
def test_a_covariance_that_is_not_round_has_nearly_the_one_of_its_trace(trace):
    """Variances like those of a posterior: some twenty times as large as others."""
    g = torch.Generator().manual_seed(1)
    mean = torch.randn(64, generator=g, dtype=torch.float64)
    variances = torch.rand(64, generator=g, dtype=torch.float64).mul(3).exp()
    unit = torch.nn.functional.normalize(mean, dim=0)
    tangent = (variances * (1 - unit.square())).sum() / mean.square().sum()
    drawn, _ = sampled(mean, variances * trace / tangent)
    found = round_chord(torch.tensor(trace, dtype=torch.float64), 64)
    assert float(found) == pytest.approx(float(drawn), rel=5e-3)


@pytest.mark.parametrize("dimension", [1, 2, 3, 64, 2048])
def test_without_a_spread_it_is_zero_and_without_a_direction_infinite(dimension):
    found = round_chord(torch.tensor([0.0, torch.inf], dtype=torch.float64), dimension)
    assert found.tolist() == [0.0, torch.inf]


@pytest.mark.parametrize("dimension", [3, 8, 64, 2048])
def test_it_grows_with_the_trace_to_that_of_a_uniform_direction(dimension):
    traces = torch.logspace(-12, 9, 200, dtype=torch.float64)
    found = round_chord(traces, dimension)
    assert bool((found.diff() > 0).all())
    assert bool((found < 2).all())
    torch.testing.assert_close(found[:20], traces[:20], rtol=1e-6, atol=0)  # t to first order
    assert float(found[-1]) == pytest.approx(2, abs=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_and_precision_are_those_of_the_trace(dtype):
    traces = torch.tensor([[1e-6, 0.3], [2.0, 5.0]], dtype=dtype)
    found = round_chord(traces, 16)
    assert found.dtype == dtype
    wanted = [[exact(t, 16) for t in row] for row in traces.double().tolist()]
    torch.testing.assert_close(found.double(), torch.tensor(wanted).double(), rtol=2e-6, atol=0)


def test_no_unit_of_the_vectors_and_no_rotation_changes_it():
    g = torch.Generator().manual_seed(2)
    mean = torch.randn(5, 8, generator=g, dtype=torch.float64)
    variances = torch.rand(5, 8, generator=g, dtype=torch.float64)
    plain = ProjectedNormal(mean, DiagonalCovariance(variances)).total_variance
    for scale in (1e-6, 1e6):
        scaled = ProjectedNormal(scale * mean, DiagonalCovariance(scale**2 * variances))
        torch.testing.assert_close(scaled.total_variance, plain)
    turned = ProjectedNormal(mean.flip(1), DiagonalCovariance(variances.flip(1)))
    torch.testing.assert_close(turned.total_variance, plain)
