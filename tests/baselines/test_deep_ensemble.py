"""Alignment of latent spaces, new weights for members, and draws that are members."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import ortho_group
from torch import nn

from baselines import DeepEnsemble
from baselines.base import Training
from baselines.base.procrustes import align
from baselines.deep_ensemble import initialise
from laplace_metric.errors import LaplaceMetricWarning


def turned(n_members=4, noise=0.0):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(50, 3, generator=g, dtype=torch.float64)
    turns = torch.from_numpy(ortho_group(3, seed=0).rvs(n_members))
    return z, z @ turns + noise * torch.randn(n_members, 50, 3, generator=g, dtype=torch.float64)


def test_rotations_and_reflections_are_undone():
    z, members = turned()
    rotations = align(members)
    eye = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    torch.testing.assert_close(rotations @ rotations.mT, eye)
    aligned = members @ rotations
    torch.testing.assert_close(aligned, aligned[:1].expand_as(aligned))
    torch.testing.assert_close(aligned[0] @ aligned[0].T, z @ z.T)


def test_alignment_is_a_minimum():
    """Turning any member a little more does not lower the sum of squares about the mean."""
    _, members = turned(noise=0.3)

    def scatter(z):
        return float((z - z.mean(0)).square().sum())

    best = members @ align(members, iterations=50)
    assert scatter(best) < 0.5 * scatter(members)
    for m in range(4):
        for seed in range(5):
            skew = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed)).double()
            other = best.clone()
            other[m] = other[m] @ torch.linalg.matrix_exp(0.01 * (skew - skew.T))
            assert scatter(other) > scatter(best)


@pytest.fixture
def separate(model, loader):
    settings = {"n_members": 3, "training": Training(epochs=5)}
    return [
        DeepEnsemble(model, align=a, **settings).fit(loader, progress=False) for a in (True, False)
    ]


def test_unaligned_is_the_ensemble_without_alignment(separate, data):
    aligned, apart = separate
    before = aligned(data[0]).mean
    unaligned = aligned.unaligned()
    torch.testing.assert_close(unaligned(data[0]).mean, apart(data[0]).mean)
    assert not unaligned.align
    assert torch.equal(aligned(data[0]).mean, before)


def test_draws_are_members(separate, data):
    x = data[0][:5]
    method = separate[0]
    everyone = method.sample(x, 3)
    torch.testing.assert_close(everyone, method(x).distribution.draws)
    some = method.draw(7, torch.Generator().manual_seed(0))
    assert torch.equal(some(x)[:, :2], some(x[:2]))
    assert all(any(torch.equal(one, member) for member in everyone) for one in some(x))


def test_members_differ_and_are_new(separate, model):
    weights = [member[0].weight for member in separate[0].parts["members"]]
    start = model[0].weight
    assert all(not torch.allclose(w, start, atol=0.05) for w in weights)
    assert not torch.allclose(weights[0], weights[1], atol=0.05)


def test_parameters_that_stay_are_told():
    class Token(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.ones(6))

    with pytest.warns(LaplaceMetricWarning, match="6 parameters"):
        initialise(nn.Sequential(Token(), nn.Linear(2, 2)))
