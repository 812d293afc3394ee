"""Determinants by autograd, a density that integrates to one, and the density it should find."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch import nn

from baselines import FlowDensity
from baselines.base import Training
from baselines.distributions import VonMisesFisher
from baselines.flow_density import CouplingFlow, stereographic
from laplace_metric.errors import InputError
from tests.baselines.labelled_points import on_vectors

F64 = torch.float64


def perturbed(size, n_layers, seed):
    torch.manual_seed(seed)
    flow = CouplingFlow(size, n_layers, 8).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return flow


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 7), st.integers(1, 5), st.integers(0, 99))
def test_the_determinant_is_that_of_the_jacobian_and_the_inverse_goes_back(size, layers, seed):
    flow = perturbed(size, layers, seed)
    y = torch.randn(3, size, dtype=F64)
    w, log_det = flow(y)
    for row, found in zip(y, log_det, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda v: flow(v[None])[0][0], row)
        torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], found)
    torch.testing.assert_close(flow.inverse(w), y)


def test_every_coordinate_is_transformed_by_two_layers():
    flow = CouplingFlow(5, 2)
    assert bool((flow.masks.sum(0) == 1).all())


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(0, 99))
def test_the_area_of_the_projection(size, seed):
    g = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(size, size, generator=g, dtype=F64))[0]
    x = nn.functional.normalize(torch.randn(1, size, generator=g, dtype=F64), dim=1)
    y, log_area = stereographic(x, basis)

    def back(v):
        square = v.square().sum()
        return torch.cat([(1 - square)[None], 2 * v]) @ basis / (1 + square)

    torch.testing.assert_close(back(y[0]), x[0])
    jacobian = torch.autograd.functional.jacobian(back, y[0])  # [D, D-1]
    area = torch.linalg.slogdet(jacobian.T @ jacobian)[1] / 2
    torch.testing.assert_close(log_area[0], area)


def test_near_the_opposite_point_digits_are_kept():
    angle = math.pi - 1e-4
    x = torch.tensor([[math.cos(angle), math.sin(angle)]])
    y, _ = stereographic(x, torch.eye(2))
    assert float(y) == pytest.approx(math.tan(angle / 2), rel=1e-3)
    far, area = stereographic(torch.tensor([[-1.0, 0.0]]), torch.eye(2))
    assert float(far.norm()) > 1e6
    assert bool(area.isfinite().all())


def sphere(n):
    """Points of a grid on the sphere in R^3, and their areas."""
    height = torch.linspace(-1, 1, 2 * n + 1, dtype=F64)[1::2]
    angle = torch.linspace(0, 2 * math.pi, 2 * n + 1, dtype=F64)[:-1]
    c, a = (v.flatten() for v in torch.meshgrid(height, angle, indexing="ij"))
    s = (1 - c.square()).sqrt()
    return torch.stack([s * a.cos(), s * a.sin(), c], 1), 4 * math.pi / len(c)


def test_it_finds_a_von_mises_fisher_and_integrates_to_one():
    mu = nn.functional.normalize(torch.tensor([1.0, 2.0, -1.0], dtype=F64), dim=0)
    law = VonMisesFisher(mu, 4.0)
    x = law.sample((800,), seed=0)
    method = on_vectors(
        FlowDensity, x, torch.arange(800) % 2, spherical=True, hidden=16,
        training=Training(epochs=30, learning_rate=5e-3),
    )  # fmt: skip
    points, area = sphere(200)
    log_p = -method(points).uncertainty
    assert float(log_p.exp().sum() * area) == pytest.approx(1, abs=5e-3)
    assert spearmanr(log_p, law.log_prob(points)).statistic > 0.95
    new = law.sample((2000,), seed=1)
    assert float(method(new).uncertainty.mean()) == pytest.approx(float(law.entropy()), abs=0.2)


def test_in_space_it_is_the_likelihood_of_a_gaussian():
    g = torch.Generator().manual_seed(0)
    x = torch.tensor([5.0, -3.0], dtype=F64) + torch.tensor([0.1, 4.0], dtype=F64) * torch.randn(
        500, 2, generator=g, dtype=F64
    )
    once = Training(epochs=1, learning_rate=1e-9)
    method = on_vectors(FlowDensity, x, torch.arange(500) % 2, training=once)
    spread, mean = torch.std_mean(x, dim=0, correction=0)
    exact = -torch.distributions.Normal(mean, spread).log_prob(x).sum(1)
    torch.testing.assert_close(method(x).uncertainty, exact, rtol=1e-4, atol=1e-4)


def test_the_weights_of_the_best_epoch_stay(monkeypatch):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=g, dtype=F64)
    y = torch.arange(40) % 2
    many = Training(epochs=60, learning_rate=0.02)
    train, parts = FlowDensity._train, []
    monkeypatch.setattr(
        FlowDensity, "_train", lambda self, *sets: parts.append(sets) or train(self, *sets)
    )
    method = on_vectors(FlowDensity, x, y, training=many, held_out=0.5)
    (learnt, held), best = parts[0], min(method.losses_)
    assert (len(learnt), len(held)) == (20, 20)
    assert method.losses_[-1] > best + 0.1  # it had begun to learn its vectors by heart
    assert float(method(held).uncertainty.mean()) == pytest.approx(best, abs=1e-9)
    last = on_vectors(FlowDensity, x, y, training=many, held_out=0)
    assert float(last(x).uncertainty.mean()) < float(method(x).uncertainty.mean())


def test_an_input_unlike_the_training_set_has_less_density():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=g) + torch.tensor([4.0, 0.0, 0.0, 0.0])
    method = on_vectors(FlowDensity, x, torch.arange(200) % 2, spherical=True)
    assert float(method(-x).uncertainty.min()) > float(method(x).uncertainty.quantile(0.95))


def test_what_it_refuses(model, data):
    x, y = data
    with pytest.raises(InputError, match="held_out=1"):
        FlowDensity(model, held_out=1)
    with pytest.raises(InputError, match="n_layers=0"):
        FlowDensity(model, n_layers=0)
    with pytest.raises(InputError, match="size 2.*flow needs 3"):
        FlowDensity(nn.Linear(5, 2)).fit([(x, y)])
    with pytest.raises(InputError, match="size=1"):
        CouplingFlow(1)
    with pytest.raises(InputError, match="one vector"):
        FlowDensity(model).fit([(x[:1], y[:1])])
