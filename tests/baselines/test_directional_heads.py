"""Concentrations from features and from norms; losses take embeddings of any length."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from baselines import ELK, MCInfoNCE
from baselines.base.heads import ConcentrationHead, NormConcentration, inverse_softplus
from baselines.mcinfonce import MCInfoNCELoss
from laplace_metric.errors import InputError, UnknownNameError


def test_concentrations_do_not_depend_on_the_length_of_features():
    head, h = ConcentrationHead(6, initial=20.0), torch.randn(50, 6)
    torch.testing.assert_close(head(1000 * h), head(h))
    assert abs(float(head(h).detach().mean()) - 20) < 2


def test_concentrations_stay_positive():
    head = ConcentrationHead(3)
    head.offset.data.fill_(-200.0)
    assert float(head(torch.randn(4, 3)).detach().min()) == pytest.approx(1e-3)


@pytest.mark.parametrize("value", [1e-3, 1.0, 16.0, 1e3])
def test_inverse_softplus(value):
    x = torch.tensor(inverse_softplus(value), dtype=torch.float64)
    assert float(nn.functional.softplus(x)) == pytest.approx(value)


def test_norm_concentration_starts_on_its_first_batch():
    head, z = NormConcentration(30.0), torch.randn(200, 4)
    assert float(head(z).detach().mean()) == pytest.approx(30, abs=0.01)
    assert float(head(2 * z).detach().mean()) == pytest.approx(60, abs=0.01)
    loaded = NormConcentration(1.0)
    loaded.load_state_dict(head.state_dict())
    torch.testing.assert_close(loaded(z), head(z))


def test_losses_take_directions_of_any_length():
    z, y, kappa = torch.randn(8, 3), torch.arange(8) % 2, torch.full((8,), 20.0)
    loss = MCInfoNCELoss()
    values = [
        loss(length * z, y, kappa, generator=torch.Generator().manual_seed(0))
        for length in (1.0, 7.0)
    ]
    torch.testing.assert_close(*values)


def test_bad_settings(model):
    with pytest.raises(UnknownNameError, match="'head', 'norm'"):
        MCInfoNCE(model, concentration="trace")
    with pytest.raises(UnknownNameError, match="'proxies', 'pairs'"):
        ELK(model, form="triplets")
    with pytest.raises(InputError, match="direction"):
        MCInfoNCE(model, spherical=False)
    with pytest.raises(InputError, match="n_samples"):
        MCInfoNCELoss(n_samples=0)
