"""The posterior as new points see it: generalized cross-validation, by group of directions."""

from __future__ import annotations

import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature._eigenbases import (
    DenseEigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
)
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.heads._layout import Layout
from laplace_metric.laplace import Posterior
from laplace_metric.laplace._new_points import as_new_points_see, n_terms
from laplace_metric.laplace._temperature import variance_of_new_points


def ridge(a: torch.Tensor, prior_precision: float) -> Posterior:
    """Return the posterior N(0, (sum_i a_i a_i^T + tau I)^-1) of one output."""
    values, vectors = torch.linalg.eigh(a.mT @ a / len(a))
    curvature = SpectralCurvature(DenseEigenbasis(vectors), values.clamp_min(0), 0.0)
    mean = torch.zeros(a.shape[1], dtype=torch.float64)
    return Posterior(mean, curvature, float(len(a)), prior_precision)


def variances(posterior: Posterior, a: torch.Tensor) -> torch.Tensor:
    coordinates = posterior.basis.to_eigenbasis(a)
    return coordinates.square() @ posterior.spectrum


@settings(deadline=None)
@given(
    n=st.integers(2, 30),
    width=st.integers(1, 20),
    log_prior=st.floats(-4, 4),
    seed=st.integers(0, 99),
)
def test_the_mean_variance_of_a_ridge_regression_is_that_of_generalized_cross_validation(
    n, width, log_prior, seed
):
    """By matrices: with S = (A^T A + tau I)^-1, the hat matrix A S A^T has the trace g."""
    a = torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tau = 10.0**log_prior
    posterior = ridge(a, tau)
    left = tau * torch.linalg.inv(a @ a.mT + tau * torch.eye(n, dtype=torch.float64))  # I - hat
    wanted = (1 - left.diagonal()).mean() / (left.trace() / n)
    found = variances(as_new_points_see(posterior, n, 1), a).mean()
    # eigenvalues that are 0 are rounding errors of the largest one, next to tau; and 1 - g / n, as
    # small as 1 / wanted, has their error
    rounding = 1e-15 * float(a.square().sum()) / tau * float(wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-6 + rounding, atol=0)


@pytest.mark.parametrize(("n", "width"), [(40, 100), (100, 100), (400, 100)])
def test_fitted_points_vary_as_new_ones_do(n, width):
    """On average over 2,000 new inputs of one Gaussian, whose scales span a factor of ten."""
    g = torch.Generator().manual_seed(0)
    scales = torch.linspace(1, 0.1, width, dtype=torch.float64)
    a, new = (torch.randn(m, width, generator=g, dtype=torch.float64) * scales for m in (n, 2_000))
    posterior = ridge(a, prior_precision=0.5)
    as_fitted, as_new = (
        variances(p, a).mean() for p in (posterior, as_new_points_see(posterior, n, 1))
    )
    truth = float(variances(posterior, new).mean())
    assert float(as_new) == pytest.approx(truth, rel=0.1)
    assert float(as_fitted) < 0.82 * truth


def spectral(basis, values: torch.Tensor) -> Posterior:
    curvature = SpectralCurvature(basis, values.double(), 0.0)
    mean = torch.zeros(len(values), dtype=torch.float64)
    return Posterior(mean, curvature, n_effective=10.0, prior_precision=2.0, temperature=0.3)


def factors(posterior: Posterior, n_points: int, n_outputs: int) -> torch.Tensor:
    seen = as_new_points_see(posterior, n_points, n_outputs)
    assert seen.temperature == posterior.temperature
    return seen.spectrum / posterior.spectrum


def of_group(gained: torch.Tensor, terms: int) -> torch.Tensor:
    """By a loop, of one group."""
    g = [float(x / (x + 2.0)) for x in gained]
    share = sum(g) / terms
    c = share / (1 - share) * sum(g) / sum(x * x for x in g)
    return torch.tensor([1 + x * c for x in g], dtype=torch.float64)


def test_groups_are_the_directions_in_which_a_point_has_one_term():
    """Each direction by itself, output directions of layers, and all with Z terms a point."""
    values = torch.rand(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gained = 10 * values
    diagonal = factors(spectral(IdentityEigenbasis(), values), 7, 3)
    torch.testing.assert_close(diagonal, 1 / (1 - gained / (gained + 2) / 7))
    dense = factors(spectral(DenseEigenbasis(torch.eye(12).double()), values), 7, 3)
    torch.testing.assert_close(dense, of_group(gained, 21))
    layers = Layout(2, 3, bias=False), Layout(3, 2, bias=False)
    blocks = [
        KroneckerEigenblock(torch.eye(z).double(), torch.eye(a).double(), layout)
        for (z, a), layout in zip(((2, 3), (3, 2)), layers, strict=True)
    ]
    kron = factors(spectral(KroneckerEigenbasis(tuple(blocks)), values), 7, 3)
    parts = [gained[0:3], gained[3:6], gained[6:8], gained[8:10], gained[10:12]]
    torch.testing.assert_close(kron, torch.cat([of_group(part, 7) for part in parts]))


def test_directions_that_the_data_leave_to_the_prior_vary_as_before():
    values = torch.tensor([4.0, 1.0, 0.0, 0.0])
    found = factors(spectral(DenseEigenbasis(torch.eye(4).double()), values), 5, 1)
    torch.testing.assert_close(found[2:], torch.ones(2).double())
    assert (found[:2] > 1.4).all()


def test_a_prior_of_each_layer_stays_in_the_precision():
    values = torch.tensor([4.0, 1.0, 0.5, 0.2])
    plain = spectral(IdentityEigenbasis(), values)
    weights = torch.tensor([1.0, 1.0, 5.0, 5.0]).double()
    posterior = Posterior(plain.mean, plain.curvature, 10.0, 2.0, 0.3, weights)
    gained, prior = 10 * values.double(), 2 * weights
    wanted = 0.3 / (gained + prior) / (1 - gained / (gained + prior) / 9)
    torch.testing.assert_close(as_new_points_see(posterior, 9, 2).spectrum, wanted)


def test_an_overdetermined_fit_stays_finite():
    """As many directions as terms, and hardly a prior: rounding may leave none over."""
    values = torch.full((6,), 1e12)
    found = factors(spectral(DenseEigenbasis(torch.eye(6).double()), values), 6, 1)
    assert found.isfinite().all()


def fitted_to_few(
    distance: str, structure: str
) -> tuple[LaplaceEmbedder, torch.Tensor, torch.Tensor]:
    """40 of 600 points of four classes, under a head of 32 inputs."""
    g = torch.Generator().manual_seed(2)
    centers = 2 * torch.randn(4, 32, generator=g, dtype=torch.float64)
    y = torch.arange(600) % 4
    x = centers[y] + torch.randn(600, 32, generator=g, dtype=torch.float64)
    torch.manual_seed(0)
    hessian = "positives" if distance == "euclidean" else "fixed"
    how = {"distance": distance, "hessian": hessian, "structure": structure}
    embedder = LaplaceEmbedder(nn.Linear(32, 4).double(), **how, temperature=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        return embedder.fit([(x[:40], y[:40])], progress=False), x, y


@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_the_variance_of_new_points_is_known_from_fitted_ones(distance, structure):
    """Within a third, where fitted points may vary four times less."""
    embedder, x, y = fitted_to_few(distance, structure)
    fitted, old = embedder.fitted_, x[:40]
    terms = n_terms(y[:40], fitted.loss)
    guess = float(variance_of_new_points(fitted, old, y[:40], terms).mean())
    truth = float(embedder(x[40:]).uncertainty.mean())
    assert guess == pytest.approx(truth, rel=1 / 3)
    if structure != "diag":
        assert abs(guess - truth) < truth - float(embedder(old).uncertainty.mean())


def test_the_variance_of_new_points_is_its_formula():
    """By matrices, of two unequal classes: means of classes vary as they do in the posterior."""
    embedder, x, _ = fitted_to_few("euclidean", "full")
    fitted, y = embedder.fitted_, (torch.arange(40) < 10).long()
    head, seen = fitted.jacobian, as_new_points_see(fitted.posterior, 36, 4)

    def traces(posterior: Posterior, h: torch.Tensor) -> torch.Tensor:
        j = head.jacobian(h)
        dense = posterior.basis.from_eigenbasis(posterior.spectrum.diag()).mT
        covariance = posterior.basis.from_eigenbasis(dense)
        return torch.einsum("nzp,pq,nzq->n", j, covariance, j)

    found = variance_of_new_points(fitted, x[:40], y, 36)
    for i in range(40):
        own = x[:40][y == y[i]]
        h, center = x[i : i + 1], own.mean(0, keepdim=True)
        gap = [traces(seen, at) - traces(fitted.posterior, at) for at in (h, center)]
        wanted = traces(fitted.posterior, h) + len(own) / (len(own) - 1) * (gap[0] - gap[1])
        assert float(found[i]) == pytest.approx(float(wanted), rel=1e-9)
