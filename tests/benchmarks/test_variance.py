"""Spreads of distances over heads, beside those that a posterior predicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from benchmarks.posterior.problems import Network
from benchmarks.posterior.variance import (
    NARROW,
    STRONG,
    bootstrapped,
    compared,
    narrow,
    partial,
    spread,
)
from laplace_metric import LaplaceEmbedder

D, Z = 6, 3


def points(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 5
    centres = 2 * torch.randn(5, D, generator=torch.Generator().manual_seed(9))
    return centres[y] + torch.randn(n, D, generator=g), y


def embedder() -> LaplaceEmbedder:
    torch.manual_seed(0)
    model = nn.Linear(D, Z)
    how = {"distance": "euclidean", "hessian": "positives", "temperature": 1.0}
    return LaplaceEmbedder(model, **how).fit([points(60)], progress=False)


def test_heads_of_the_posterior_itself_have_its_spread():
    one, (x, _), (y, _) = embedder(), points(300, 1), points(300, 2)
    drawn = one.posterior_.sample(400, 0)
    found = compared(one, drawn, x, y)
    assert found["size"] == pytest.approx(1, abs=0.03)
    assert found["rank"] > 0.9
    fitted = one.fitted_.with_precision(STRONG)
    noise = LaplaceEmbedder.from_fitted(one.model, one.settings, fitted)
    assert compared(noise, drawn, x, y)["rank"] < found["rank"] - 0.02
    wide = one.fitted_.with_temperature(4.0)
    wider = LaplaceEmbedder.from_fitted(one.model, one.settings, wide)
    assert compared(wider, drawn, x, y)["size"] > 1.9


def test_widths_are_the_same_for_all():
    one, (x, _), (y, _) = embedder(), points(300, 1), points(300, 2)
    hot = LaplaceEmbedder.from_fitted(one.model, one.settings, one.fitted_.with_temperature(900.0))
    for some in (one, hot):
        assert float(narrow(some, x)(x).uncertainty.mean()) == pytest.approx(NARROW, rel=1e-4)
    drawn = one.posterior_.sample(50, 0)
    ranks = [compared(some, drawn, x, y)["rank"] for some in (one, hot)]
    assert ranks[0] == pytest.approx(ranks[1], abs=1e-3)


def test_one_head_has_no_spread():
    one, (x, _), (y, _) = embedder(), points(20, 1), points(20, 2)
    assert float(spread(one, one.posterior_.mean.expand(3, -1), x, y).max()) == 0


def test_the_partial_correlation_is_that_of_ranks_after_regression():
    g = torch.Generator().manual_seed(0)
    given = torch.randn(500, generator=g)
    a, b = (given + torch.randn(500, generator=g) for _ in range(2))
    b = b + 0.5 * a
    ranks = [np.argsort(np.argsort(v.numpy())).astype(float) for v in (a, b, given)]
    left = [r - np.polyval(np.polyfit(ranks[2], r, 1), ranks[2]) for r in ranks[:2]]
    assert partial(a, b, given) == pytest.approx(np.corrcoef(left)[0, 1], rel=1e-9)
    assert partial(a, b, given) < spearmanr(a, b).statistic


def test_heads_are_of_other_samples_and_start_where_the_head_is():
    x, y = points(200)
    head = nn.Linear(D, Z)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    network = Network("development", "none", "contrastive", Z)
    heads = bootstrapped(network, head, x, y)
    assert heads.shape == (16, D * Z + Z)
    assert len(heads.unique(dim=0)) == 16
    theta = torch.cat([head.weight.flatten(), head.bias]).detach()
    assert float((heads - theta).norm(dim=1).max()) < 0.5 * float(theta.norm())
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    assert torch.equal(heads, bootstrapped(network, head, x, y))
