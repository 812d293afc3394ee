"""The bound and the predictions against dense Gaussians, and latent points that explain vectors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from baselines import GPLVM
from baselines.base import Training
from baselines.gplvm import Across, SparseGP, rbf_kernel
from laplace_metric.errors import InputError
from tests.baselines.labelled_points import on_vectors

F64 = torch.float64


def problem(n, size, q, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, q, generator=g, dtype=F64)
    y = torch.randn(n, size, generator=g, dtype=F64)
    lengths = torch.rand(q, generator=g, dtype=F64) - 0.5
    return x, y, lengths


def dense(k, y):
    law = torch.distributions.MultivariateNormal(torch.zeros(len(y), dtype=F64), k)
    return float(law.log_prob(y.T).sum())


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 9), st.integers(1, 4), st.integers(1, 3), st.floats(-2, 1), st.floats(-3, 1),
    st.integers(0, 99),
)  # fmt: skip
def test_the_bound_is_the_marginal_likelihood_with_all_inputs_and_below_it_with_few(
    n, size, q, log_variance, log_noise, seed
):
    x, y, lengths = problem(n, size, q, seed)
    k = rbf_kernel(x, x, lengths, torch.tensor(log_variance, dtype=F64))
    noise = math.exp(log_noise) * torch.eye(n, dtype=F64)
    exact = dense(k + noise, y)
    all_of_them = SparseGP(x, lengths, log_variance, log_noise).requires_grad_(False)
    assert float(all_of_them.bound(x, y)) == pytest.approx(exact, rel=1e-4, abs=1e-4)
    few = SparseGP(x[: (n + 1) // 2], lengths, log_variance, log_noise).requires_grad_(False)
    z = few.inducing.detach()
    cross = rbf_kernel(x, z, lengths, few.log_variance.detach())
    inner = rbf_kernel(z, z, lengths, few.log_variance.detach())
    inner = inner + 1e-8 * math.exp(log_variance) * torch.eye(len(z), dtype=F64)
    nystroem = cross @ torch.linalg.solve(inner, cross.T)
    slack = size * float((k - nystroem).diagonal().sum()) / (2 * math.exp(log_noise))
    expected = dense(nystroem + noise, y) - slack  # Titsias 2009, eq. 9
    assert float(few.bound(x, y)) == pytest.approx(expected, rel=1e-6, abs=1e-5)
    assert float(few.bound(x, y)) <= exact + 1e-4


def test_predictions_are_those_of_the_dense_process():
    x, y, lengths = problem(8, 3, 2, 0)
    new = torch.randn(5, 2, dtype=F64)
    gp = SparseGP(x, lengths, 0.3, -1.0).requires_grad_(False)
    mean, variance = gp.predict(new, **gp.condition(x, y))
    k = gp.kernel(x, x) + math.exp(-1.0) * torch.eye(8, dtype=F64)
    cross = gp.kernel(new, x)
    solved = torch.linalg.solve(k, cross.T)
    torch.testing.assert_close(mean, solved.T @ y, rtol=1e-4, atol=1e-5)
    exact = math.exp(0.3) - (cross.T * solved).sum(0)
    torch.testing.assert_close(variance, exact, rtol=1e-4, atol=1e-5)


def test_another_of_the_class_is_explained_by_the_average_of_both_likelihoods():
    """With all inputs the bound is exact: log E_f prod_n p(y_n | f_n) prod_m p(y_m | f_n)^(w/M)."""
    x, y, lengths = problem(6, 2, 2, 0)
    labels, w = torch.tensor([0, 0, 0, 1, 1, 2]), 0.7
    gp = SparseGP(x, lengths, 0.2, -0.5).requires_grad_(False)
    found = gp.bound(x, y, Across.of(w, y, labels))
    noise, rows, weights = math.exp(-0.5), [], []
    for n in range(6):
        others = [m for m in range(6) if m != n and labels[m] == labels[n]] or [n]
        rows += [(n, n), *((n, m) for m in others)]
        weights += [1.0, *(w / len(others) for _ in others)]
    latent, target = torch.tensor(rows).T
    share = torch.tensor(weights, dtype=F64)
    # p^c is a Gaussian of variance s^2 / c, times (2 pi s^2)^(-c/2) (2 pi s^2 / c)^(1/2)
    kernel = gp.kernel(x, x)[latent][:, latent] + torch.diag(noise / share)
    scale = -share / 2 * math.log(2 * math.pi * noise) + (2 * math.pi * noise / share).log() / 2
    exact = dense(kernel, y[target]) + 2 * float(scale.sum())
    assert float(found) == pytest.approx(exact, rel=1e-5)


@pytest.fixture(scope="module")
def ring():
    """A curve in six dimensions, with little noise; two classes along it."""
    g = torch.Generator().manual_seed(0)
    t = 3 * torch.rand(120, generator=g, dtype=F64)
    waves = torch.stack(
        [(w * t).sin() for w in (1.0, 1.5, 2.0)] + [(w * t).cos() for w in (1.0, 2.0, 2.5)], 1
    )
    x = waves + 0.02 * torch.randn(120, 6, generator=g, dtype=F64)
    return x, (t > 1.5).long()


def test_it_explains_its_vectors_and_is_unsure_of_others(ring):
    x, labels = ring
    many = Training(epochs=150, learning_rate=0.05)
    method = on_vectors(GPLVM, x, labels, latent=2, n_inducing=20, across=0, training=many)
    assert method.losses_[-1] < method.losses_[0]
    e = method(x)
    error = (e.mean - x).square().sum(1).mean()
    assert float(error) < 0.1 * float((x - x.mean(0)).square().sum(1).mean())
    far = method(4 * x.flip(1))
    assert float(far.uncertainty.median()) > 2 * float(e.uncertainty.median())
    torch.testing.assert_close(e.uncertainty, 6 * e.variance[:, 0])
    torch.testing.assert_close(e.uncertainty, method.score(x))


def test_across_a_class_inputs_come_nearer(ring):
    x, labels = ring
    few = Training(epochs=60, learning_rate=0.05)
    spread = []
    for across in (0.0, 1.0):
        method = on_vectors(GPLVM, x, labels, latent=2, n_inducing=20, across=across, training=few)
        means = method(x).mean
        centres = torch.stack([means[labels == c].mean(0) for c in (0, 1)])
        within = (means - centres[labels]).square().sum(1).mean()
        spread.append(float(within / (centres[0] - centres[1]).square().sum()))
    assert spread[1] < 0.8 * spread[0]


def test_rows_do_not_depend_on_their_batch(ring):
    x, labels = ring
    method = on_vectors(GPLVM, x, labels, latent=2, n_inducing=10, training=Training(epochs=5))
    whole, alone = method(x[:6] + 0.1), method(x[2:3] + 0.1)
    torch.testing.assert_close(whole.mean[2:3], alone.mean)
    torch.testing.assert_close(whole.uncertainty[2:3], alone.uncertainty)


def test_the_search_of_a_latent_point_only_improves(ring):
    x, labels = ring
    quick = Training(epochs=5)
    values = []
    for steps in (1, 40):
        method = on_vectors(
            GPLVM, x, labels, latent=2, n_inducing=10, training=quick, search_steps=steps
        )
        gp, solved = method._process()
        z = x + 0.3
        point = method._latent_of(gp, solved, z)
        mean, variance = gp.predict(point, **solved)
        total = variance + gp.log_noise.exp()
        error = (z - method.parts["data"].centre - mean).square().sum(1) / total
        values.append(-(6 * total.log() + error + point.square().sum(1)) / 2)
    assert bool((values[1] >= values[0] - 1e-9).all())
    assert float((values[1] - values[0]).mean()) > 0.05


def test_unit_vectors_have_unit_means(ring):
    x, labels = ring
    method = on_vectors(GPLVM, x, labels, latent=2, spherical=True, training=Training(epochs=3))
    torch.testing.assert_close(method(3 * x).mean.norm(dim=1), torch.ones(120, dtype=F64))
    torch.testing.assert_close(method(3 * x).mean, method(x).mean)


def test_what_it_refuses(model):
    for name, value in (("latent", 0), ("n_inducing", 0), ("search_steps", 0), ("across", -1.0)):
        with pytest.raises(InputError, match=f"{name}={value}"):
            GPLVM(model, **{name: value})
    with pytest.raises(InputError, match="all vectors are equal"):
        on_vectors(GPLVM, torch.ones(4, 3), torch.arange(4) % 2)
    with pytest.raises(InputError, match="all vectors are equal"):
        GPLVM(nn.Linear(3, 2)).fit([(torch.ones(4, 3), torch.arange(4) % 2)])
