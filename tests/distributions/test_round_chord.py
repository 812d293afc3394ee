"""The expected squared distance of an uncertain direction from its mean, and its coordinates."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from scipy import integrate

from laplace_metric.distributions import DenseCovariance, DiagonalCovariance, ProjectedNormal
from laplace_metric.distributions._covariance import RotatedCovariance
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


def in_the_plane(mean: torch.Tensor, covariance: torch.Tensor) -> tuple[float, float]:
    """``E (d_k - u_k)^2`` of two coordinates, from the density of the angle (Mardia 1972)."""
    inverse, u = torch.linalg.inv(covariance), mean / mean.norm()

    def density(angle: float) -> float:
        d = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
        a, b = float(d @ inverse @ d), float(d @ inverse @ mean)
        # int_0^inf r exp(-(r d - m)' C^-1 (r d - m) / 2) dr
        c, z = float(mean @ inverse @ mean), b / a**0.5
        phi = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        cdf = 0.5 * math.erfc(-z / math.sqrt(2))
        inner = math.exp((z * z - c) / 2) * math.sqrt(2 * math.pi) * (phi + z * cdf) / a
        return inner / (2 * math.pi * float(torch.linalg.det(covariance)) ** 0.5)

    def of(k: int) -> float:
        at = (math.cos, math.sin)[k]
        points = [math.atan2(float(u[1]), float(u[0]))]
        return integrate.quad(
            lambda x: density(x) * (at(x) - float(u[k])) ** 2,
            -math.pi,
            math.pi,
            points=points,
            epsabs=1e-13,
            epsrel=1e-10,
            limit=400,
        )[0]

    return of(0), of(1)


@pytest.mark.parametrize("spread", [1e-3, 0.05, 1.0, 9.0])
@pytest.mark.parametrize("ratio", [1.0, 30.0, 1e-3])
def test_in_two_dimensions_it_is_the_integral_over_the_angle(spread, ratio):
    g = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(2, 2, generator=g, dtype=torch.float64))[0]
    values = spread * torch.tensor([1.0, ratio], dtype=torch.float64) / (1 + ratio)
    mean = torch.tensor([1.2, -0.5], dtype=torch.float64)
    matrix = (basis * values) @ basis.mT * mean.square().sum()
    law = ProjectedNormal(mean[None], DenseCovariance(matrix[None]))
    expected = torch.tensor([in_the_plane(mean, matrix)], dtype=torch.float64)
    torch.testing.assert_close(law.variance, expected, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(law.total_variance, expected.sum(1), rtol=1e-4, atol=0)


def law(kind: str, z: int, unevenness: float, trace: float) -> ProjectedNormal:
    """Three directions, whose covariances have eigenvalues that span e^(4 unevenness)."""
    g = torch.Generator().manual_seed(z)
    values = (unevenness * torch.randn(3, z, generator=g, dtype=torch.float64)).exp()
    values = values * trace / values.sum(1, keepdim=True) * 9
    mean = 3 * torch.nn.functional.normalize(torch.randn(3, z, generator=g).double(), dim=1)
    q = torch.linalg.qr(torch.randn(z, z, generator=g, dtype=torch.float64))[0]
    if kind == "diagonal":
        return ProjectedNormal(mean, DiagonalCovariance(values))
    if kind == "rotated":
        return ProjectedNormal(mean, RotatedCovariance(q, values))
    return ProjectedNormal(mean, DenseCovariance((q * values[:, None, :]) @ q.mT))


@pytest.mark.parametrize("trace", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("unevenness", [0.0, 3.0])
@pytest.mark.parametrize("z", [2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("kind", ["diagonal", "rotated", "dense"])
def test_every_number_is_that_of_draws(kind, z, unevenness, trace):
    if kind == "dense" and z > 16 and unevenness:
        pytest.skip("a matrix of many dimensions is taken for a round one")
    p = law(kind, z, unevenness, trace)
    away = (p.sample(min(40_000, 1_500_000 // z), 0) - p.mean).square()
    drawn, error = away.mean(0), away.std(0) / len(away) ** 0.5
    assert bool(((p.variance - drawn).abs() <= 5 * error + 3e-3 * drawn).all())
    total, error = away.sum(2).mean(0), away.sum(2).std(0) / len(away) ** 0.5
    assert bool(((p.total_variance - total).abs() <= 5 * error + 3e-3 * total).all())
    torch.testing.assert_close(p.variance.sum(1), p.total_variance, rtol=1e-12, atol=0)


@pytest.mark.parametrize("z", [2, 3, 16, 40])
@pytest.mark.parametrize("kind", ["diagonal", "rotated", "dense"])
def test_of_a_small_spread_it_is_the_tangent_covariance(kind, z):
    for trace in (1e-5, 1e-8, 1e-12):
        p = law(kind, z, 1.0, trace)
        tangent = p.covariance.tangent_diagonal(p.mean) / 9
        size = float(tangent.sum(1).max())
        torch.testing.assert_close(p.variance, tangent, rtol=1e-3, atol=1e-4 * size)
        torch.testing.assert_close(p.total_variance, tangent.sum(1), rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", ["diagonal", "rotated", "dense"])
def test_gradients_pass(kind):
    p = law(kind, 3, 1.0, 0.5)
    mean = p.loc.clone().requires_grad_()
    moved = ProjectedNormal(mean, p.covariance)
    assert torch.autograd.gradcheck(lambda m: ProjectedNormal(m, p.covariance).total_variance, mean)
    moved.total_variance.sum().backward()
    assert bool(mean.grad.isfinite().all())


def test_a_batch_is_its_blocks():
    p = law("rotated", 12, 1.0, 0.5)
    many = ProjectedNormal.concatenate([p] * 700)
    torch.testing.assert_close(many.variance, p.variance.repeat(700, 1))
    torch.testing.assert_close(many.total_variance, p.total_variance.repeat(700))
    assert many.select(slice(0, 0)).variance.shape == (0, 12)
