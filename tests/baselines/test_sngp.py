from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.utils import parametrize

from baselines import SNGP
from baselines.base import Training
from baselines.base.distance_aware import RandomFeatureProcess


@pytest.fixture
def process():
    torch.manual_seed(0)
    return RandomFeatureProcess(3, 4, n_features=20, lengthscale=1.5, ridge=0.3).double()


@pytest.fixture
def x():
    return torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_features_and_logits_against_loops(process, x):
    a, b, beta = process.directions, process.phases, process.beta.weight
    for i in range(3):
        phi = [
            math.sqrt(2 / 20) * math.cos(sum(a[r, k].item() * x[i, k].item() for k in range(3)) + p)
            for r, p in enumerate(b.tolist())
        ]
        assert process.features(x)[i].tolist() == pytest.approx(phi, rel=1e-12)
        logits = [sum(w * f for w, f in zip(row, phi, strict=True)) for row in beta.tolist()]
        assert process(x)[i].tolist() == pytest.approx(logits, rel=1e-10)


def test_variance_against_the_dense_formula(process, x):
    training, new = x[:20], x[20:]
    before = process.variance(new)
    torch.testing.assert_close(before, process.features(new).square().sum(1) / 0.3)  # the prior
    process.observe([training[:7], training[7:]])
    phi, rows = process.features(new), process.features(training)
    inverse = torch.linalg.inv(0.3 * torch.eye(20, dtype=torch.float64) + rows.T @ rows)
    torch.testing.assert_close(process.variance(new), (phi @ inverse * phi).sum(1))
    assert bool((process.variance(new) < before).all())
    once = process.variance(new)
    process.observe([training])  # starts anew
    torch.testing.assert_close(process.variance(new), once)


@pytest.mark.parametrize("layer_norm", [True, False])
def test_fit_sums_over_the_training_set_with_the_final_weights(model, loader, data, layer_norm):
    method = SNGP(model, n_features=16, ridge=0.5, layer_norm=layer_norm)
    method.training = Training(epochs=3, learning_rate=0.05)
    for _ in range(2):  # to fit once more starts the sum anew
        method.fit(loader, progress=False)
        z = method.model(data[0]).detach()
        if layer_norm:
            z = (z - z.mean(1, keepdim=True)) / (z.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        process = method.parts["process"]
        phi = process.features(z)
        precision = 0.5 * torch.eye(16) + phi.T @ phi
        torch.testing.assert_close(process.cholesky @ process.cholesky.T, precision)
        variance = (phi @ torch.linalg.inv(precision) * phi).sum(1)
        logits = process(z) / (1 + math.pi / 8 * variance).sqrt()[:, None]
        expected = torch.distributions.Categorical(logits=logits).entropy().detach()
        torch.testing.assert_close(method(data[0]).uncertainty, expected, rtol=1e-4, atol=1e-5)
        alone = replace(method, score="variance")
        alone._fitted = method._fitted
        torch.testing.assert_close(alone(data[0]).uncertainty, variance, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("on", "width"), [("embedding", 4), ("features", 8)])
def test_lengthscale_is_in_units_of_a_coordinate(model, loader, on, width):
    method = SNGP(model, on=on, lengthscale=2.0, n_features=1000, training=Training(epochs=1))
    directions = method.fit([loader[0]], progress=False).parts["process"].directions
    assert directions.shape == (1000, width)
    assert directions.std().item() == pytest.approx(1 / (2 * math.sqrt(width)), rel=0.05)


def test_spectral_norm_of_hidden_layers(model, loader, data):
    with torch.no_grad():
        model[0].weight.mul_(20)
    method = SNGP(model, n_features=16, spectral=True, training=Training(epochs=5))
    for _ in range(2):
        method.fit(loader, progress=False)
        hidden, head = method.model[0], method.model[2]
        assert torch.linalg.matrix_norm(hidden.weight, 2).item() == pytest.approx(1, abs=0.02)
        assert not parametrize.is_parametrized(head)
        assert len(hidden.parametrizations.weight) == 1
    assert not parametrize.is_parametrized(model[0])


def test_load_onto_the_method_s_own_model(model, loader, data, tmp_path):
    """A model that has its spectral norms already."""
    method = SNGP(model, n_features=16, spectral=True, training=Training(epochs=2))
    method.fit(loader, progress=False).save(tmp_path / "saved")
    state = torch.get_rng_state()
    for onto in (model, method.model):
        loaded = SNGP.load(tmp_path / "saved", onto)
        assert torch.equal(loaded(data[0]).uncertainty, method(data[0]).uncertainty)
    assert torch.equal(torch.get_rng_state(), state)
