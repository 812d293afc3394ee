from __future__ import annotations

import pytest
import torch
from torch import nn

from baselines import Deterministic, MCDropout


@pytest.fixture
def dropout_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
    )


def test_deterministic(model, loader, data):
    x, _ = data
    method = Deterministic(model).fit(loader, progress=False)
    embedding, z = method(x), model(x).detach()
    torch.testing.assert_close(embedding.mean, nn.functional.normalize(z, dim=-1))
    torch.testing.assert_close(embedding.uncertainty, 1 / z.norm(dim=1))
    assert float(embedding.variance.max()) == 0
    torch.testing.assert_close(method.sample(x, 2)[1], embedding.mean)
    raw = Deterministic(model, spherical=False, score="constant").fit(loader)
    torch.testing.assert_close(raw(x).mean, z)
    assert float(raw(x).uncertainty.abs().max()) == 0
    joined, labels = method.embed(loader, progress=False)
    assert torch.equal(joined.mean, embedding.mean)
    assert torch.equal(labels, data[1])


def test_mc_dropout_moments(data):
    """One linear layer after dropout: mean W x and variance p/(1-p) sum_d (W_kd x_d)^2 exactly."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Dropout(0.3), nn.Linear(5, 3)), data[0][:4]
    method = MCDropout(
        model, n_samples=20_000, spherical=False, seed=torch.Generator().manual_seed(0)
    )
    embedding, weight = method(x), model[1].weight.detach()
    expected = 0.3 / 0.7 * (x.square() @ weight.square().T)
    torch.testing.assert_close(embedding.variance, expected, rtol=0.05, atol=0)
    error = (embedding.mean - model.eval()(x).detach()) / (expected / 20_000).sqrt()
    assert float(error.abs().max()) < 5


def test_mc_dropout_leaves_everything_alone(dropout_model, data):
    dropout_model.train()
    state = torch.get_rng_state()
    before = {k: v.clone() for k, v in dropout_model.state_dict().items()}
    method = MCDropout(dropout_model, n_samples=3, seed=torch.Generator().manual_seed(0))
    method(data[0])
    method.sample(data[0], 2, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in dropout_model.state_dict().items())
    assert all(m.training for m in dropout_model.modules())
    assert not any(m._forward_hooks for m in dropout_model.modules())


def test_mc_dropout_is_reproducible_and_independent_between_inputs(dropout_model, data):
    x = data[0][:1].expand(6, -1)
    a, b = (
        MCDropout(dropout_model, n_samples=4, seed=torch.Generator().manual_seed(1))(x)
        for _ in range(2)
    )
    assert torch.equal(a.distribution.draws, b.distribution.draws)
    assert not torch.allclose(a.distribution.draws[:, 0], a.distribution.draws[:, 1])


def test_joint_draws_share_masks_between_inputs_and_calls(dropout_model, data):
    method = MCDropout(dropout_model)
    draw = method.draw(3, torch.Generator().manual_seed(0))
    together = draw(data[0])
    apart = torch.cat([draw(data[0][:9]), draw(data[0][9:])], dim=1)
    torch.testing.assert_close(together, apart)
    twice = draw(data[0][:1].expand(2, -1))
    torch.testing.assert_close(twice[:, 0], twice[:, 1])
    assert not torch.allclose(together[0], together[1])


def test_channel_dropout_drops_whole_channels():
    model = nn.Sequential(nn.Conv2d(1, 64, 1), nn.Dropout2d(0.5), nn.Flatten())
    draws = MCDropout(model, n_samples=8, spherical=False)(torch.ones(2, 1, 3, 3))
    zero = (draws.distribution.draws.view(8, 2, 64, 9) == 0).float().mean(-1)
    assert bool(((zero == 0) | (zero == 1)).all())
    assert 0.4 < float(zero.mean()) < 0.6
