from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.covariance import LedoitWolf
from torch import nn

from baselines import Mahalanobis
from laplace_metric.errors import NonFiniteError, UnknownNameError
from tests.baselines.contract import MethodContract


class TestMahalanobis(MethodContract):
    needs_two_classes = False

    def make(self, model):
        return Mahalanobis(model)


class TestRelativeOnFeatures(MethodContract):
    needs_two_classes = False

    def make(self, model):
        return Mahalanobis(model, relative=True, on="features", covariance="ledoit_wolf")


def nearest(x, y, queries, precision):
    """min_c (q - mu_c)^T P (q - mu_c), by scipy."""
    means = np.stack([x[y == c].mean(0) for c in np.unique(y)])
    return cdist(queries, means, "mahalanobis", VI=precision).min(1) ** 2, means


@pytest.mark.parametrize("on", ["embedding", "features"])
def test_against_scipy(model, loader, data, on):
    method = Mahalanobis(model, on=on).fit(loader, progress=False)
    x, y, queries = vectors(model, data[0], on), data[1].numpy(), 2 * data[0][:9]
    _, means = nearest(x, y, x, np.eye(x.shape[1]))
    residual = x - means[y]
    precision = np.linalg.pinv(residual.T @ residual / len(x), hermitian=True)
    expected, _ = nearest(x, y, vectors(model, queries, on), precision)
    np.testing.assert_allclose(method(queries).uncertainty.numpy(), expected, rtol=1e-4)
    relative = Mahalanobis(model, relative=True, on=on).fit(loader, progress=False)
    centre = x.mean(0, keepdims=True)
    total = np.linalg.pinv(np.cov(x.T, bias=True), hermitian=True)
    far = cdist(vectors(model, queries, on), centre, "mahalanobis", VI=total)[:, 0] ** 2
    np.testing.assert_allclose(
        relative(queries).uncertainty.numpy(), expected - far, rtol=1e-3, atol=1e-3
    )


def vectors(model, x, on):
    layers = model if on == "embedding" else model[:2]
    return layers(x).detach().double().numpy()


def test_ledoit_wolf(model, loader, data):
    method = Mahalanobis(model, covariance="ledoit_wolf").fit(loader, progress=False)
    x, y = vectors(model, data[0], "embedding"), data[1].numpy()
    _, means = nearest(x, y, x, np.eye(4))
    precision = LedoitWolf(assume_centered=True).fit(x - means[y]).precision_
    expected, _ = nearest(x, y, x, precision)
    np.testing.assert_allclose(method(data[0]).uncertainty.numpy(), expected, rtol=1e-4)


def test_fewer_inputs_than_dimensions():
    """The pseudo-inverse stays finite, and never sees a direction that did not vary."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(3, 8), torch.randn(12, 3), torch.arange(12) % 2
    for estimator in ("empirical", "ledoit_wolf"):
        method = Mahalanobis(model, covariance=estimator).fit([(x, y)], progress=False)
        assert method(x).uncertainty.isfinite().all()
        assert method(x).uncertainty.max() < 100
        assert method(100 * x).uncertainty.min() > method(x).uncertainty.max()


def test_bad_input(model, loader, data):
    with pytest.raises(UnknownNameError, match="'empirical', 'ledoit_wolf'"):
        Mahalanobis(model, covariance="oas")
    with pytest.raises(UnknownNameError, match="'embedding', 'features'"):
        Mahalanobis(model, on="logits")
    method = Mahalanobis(model).fit(loader, progress=False)
    before = method(data[0]).uncertainty
    with pytest.raises(NonFiniteError, match="embedding holds NaN"):
        method.fit([*loader, (torch.full((4, 5), torch.nan), torch.arange(4))], progress=False)
    assert torch.equal(method(data[0]).uncertainty, before)  # nothing changed
