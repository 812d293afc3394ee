from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import nn

from baselines import FrozenLossPrediction, frozen_loss_prediction
from baselines.base import Training
from baselines.frozen_loss_prediction import ranking_loss, retrieval_losses
from tests.baselines.labelled_points import labelled_points, on_vectors

QUICK = Training(epochs=2)


@settings(deadline=None, max_examples=60)
@given(labelled_points())
def test_losses_against_loops(points):
    x, labels, _ = points
    rows, y = x.tolist(), labels.tolist()
    for i, loss in enumerate(retrieval_losses(x, labels).tolist()):
        others = [(math.dist(rows[i], rows[j]), y[j]) for j in range(len(y)) if j != i]
        same = min((d for d, label in others if label == y[i]), default=math.inf)
        other = min(d for d, label in others if label != y[i])
        assert loss == pytest.approx(same - other, rel=1e-9, abs=1e-6)


def test_a_loss_above_zero_is_an_error_of_the_nearest_other_item(monkeypatch):
    """scikit-learn's ``kneighbors()`` leaves each item out; the blocks of rows change nothing."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    x = torch.randn(90, 4, generator=g, dtype=torch.float64) + labels[:, None]
    nearest = NearestNeighbors(n_neighbors=1).fit(x.numpy()).kneighbors(return_distance=False)
    wrong = labels[nearest[:, 0]] != labels
    losses = retrieval_losses(x, labels)
    assert 10 < int(wrong.sum()) < 60
    assert torch.equal(losses > 0, wrong)
    monkeypatch.setattr(frozen_loss_prediction, "ROWS", 7)
    torch.testing.assert_close(retrieval_losses(x, labels), losses)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 15), st.integers(0, 1000), st.floats(0.01, 2.0))
def test_ranking_loss(n, seed, margin):
    """torch's loss of the pairs that have an order."""
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(n, generator=g, dtype=torch.float64, requires_grad=True)
    losses = torch.randint(3, (n,), generator=g).double()
    pairs = [(i, i + 1) for i in range(0, n - 1, 2) if losses[i] != losses[i + 1]]
    actual = ranking_loss(u, losses, margin)
    if not pairs:
        assert actual.item() == 0
        return
    i, j = torch.tensor(pairs).T
    order = (losses[i] - losses[j]).sign()
    expected = nn.functional.margin_ranking_loss(u[i], u[j], order, margin=margin)
    torch.testing.assert_close(actual, expected)
    gradients = (torch.autograd.grad(value, u)[0] for value in (actual, expected))
    torch.testing.assert_close(*gradients)


@pytest.fixture(scope="module")
def half_noisy():
    """Two classes that are apart where the third number is positive, and mixed elsewhere."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(600, 3, generator=g)
    clean = x[:, 2] > 0
    labels = torch.where(clean, x[:, 0] > 0, torch.rand(600, generator=g) > 0.5).long()
    x[:, 0] += 2 * x[:, 0].sign() * clean
    return x, labels, clean


def test_finds_where_errors_are(half_noisy):
    """On other items than those of the fit; the ranking loss falls."""
    x, labels, clean = half_noisy
    method = on_vectors(
        FrozenLossPrediction, x[:400], labels[:400], hidden=32, training=Training(epochs=20)
    )
    u = method(x[400:]).uncertainty
    assert roc_auc_score(~clean[400:], u) > 0.9
    assert method.losses_[-1] < 0.8 * method.losses_[0]
    assert len(method.losses_) == 20
    assert (
        0.05 < method.losses_[0] < 0.15
    )  # a mean: the margin is 0.1, u differs by little at first
    assert float(u.min()) > 0


@pytest.mark.parametrize("spherical", [False, True])
def test_losses_are_those_of_the_embedding(model, loader, data, spherical, monkeypatch):
    """Whatever the head reads, and compared as the embedder compares."""
    asked = []

    def spy(x, labels):
        asked.append(x)
        return retrieval_losses(x, labels)

    monkeypatch.setattr(frozen_loss_prediction, "retrieval_losses", spy)
    z = model(data[0]).detach()
    if spherical:
        z = nn.functional.normalize(z, dim=1)
    for on in ("embedding", "features"):
        method = FrozenLossPrediction(
            model, on=on, spherical=spherical, training=QUICK, hidden=8, head="2"
        )
        method.fit(loader, progress=False)
        torch.testing.assert_close(asked[-1].float(), z)
    assert method.parts["predictor"][0].weight.shape == (8, 8)


def test_vectors_of_any_scale(half_noisy):
    """The head reads vectors of mean 0 and variance 1; what varies by rounding is only centred."""
    x, labels = half_noisy[0].double(), half_noisy[1]
    methods = [
        on_vectors(FrozenLossPrediction, inputs, labels, hidden=8, training=QUICK)
        for inputs in (x, 1024 * x - 4096)
    ]
    u = methods[0](x).uncertainty
    torch.testing.assert_close(methods[1](1024 * x - 4096).uncertainty, u)
    standard = (x.numpy() - x.numpy().mean(0)) / x.numpy().std(0)
    output = methods[0].parts["predictor"](torch.from_numpy(standard)).detach().numpy()
    np.testing.assert_allclose(u.numpy(), np.log1p(np.exp(output[:, 0])), rtol=1e-9)
    rounding = 1e-9 * torch.arange(600)[:, None].double().sin()
    flat = torch.cat([x, 0.1 + rounding], dim=1)
    method = on_vectors(FrozenLossPrediction, flat, labels, hidden=8, training=QUICK)
    assert float(method.parts["statistics"].scale[3]) == 1
    near = method(flat + torch.tensor([0, 0, 0, 0.01])).uncertainty
    torch.testing.assert_close(near, method(flat).uncertainty, rtol=0.05, atol=0)


def test_items_without_a_companion_do_not_count(monkeypatch):
    counted = []

    def spy(predicted, losses, margin):
        counted.extend(losses.tolist())
        return ranking_loss(predicted, losses, margin)

    monkeypatch.setattr(frozen_loss_prediction, "ranking_loss", spy)
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7])
    on_vectors(FrozenLossPrediction, x, labels, hidden=8, training=Training(epochs=1))
    assert len(counted) == 6
    assert all(math.isfinite(loss) for loss in counted)
