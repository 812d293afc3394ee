from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.covariance import LedoitWolf
from torch import nn

from baselines import Mahalanobis
from laplace_metric.errors import NonFiniteError, UnknownNameError
from tests.baselines.labelled_points import labelled_points, on_vectors


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


def mahalanobis_plus_plus(x, y, queries, *, relative):
    """By loops over rows: unit vectors, then means, covariances and distances."""
    x, queries = ([row / max(np.linalg.norm(row), 1e-300) for row in rows] for rows in (x, queries))
    means = {c: np.mean([v for v, label in zip(x, y, strict=True) if label == c], 0) for c in y}

    def distances(means, labels):
        rows = [v - means[c] for v, c in zip(x, labels, strict=True)]
        precision = np.linalg.pinv(sum(np.outer(r, r) for r in rows) / len(rows), hermitian=True)
        return np.array(
            [min((q - m) @ precision @ (q - m) for m in means.values()) for q in queries]
        )

    near = distances(means, list(y))
    return near - distances({0: np.mean(x, 0)}, [0] * len(x)) if relative else near


@settings(deadline=None, max_examples=25)
@given(labelled_points(least=8), st.booleans())
def test_plus_plus_against_loops(points, relative):
    """Row lengths differ by orders of magnitude; some rows are zero, copies, or alone."""
    x, y, queries = points
    method = on_vectors(Mahalanobis, x, y, relative=relative, normalise=True)
    expected = mahalanobis_plus_plus(x.numpy(), y.tolist(), queries.numpy(), relative=relative)
    actual = method(queries).uncertainty.numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_plus_plus_sees_directions_only(data):
    torch.manual_seed(0)
    x, y = torch.randn(60, 4, dtype=torch.float64), data[1]
    method = on_vectors(Mahalanobis, x, y, normalise=True)
    lengths = torch.logspace(-200, 200, 60, dtype=torch.float64)[:, None]
    scaled = on_vectors(Mahalanobis, x * lengths, y, normalise=True)
    torch.testing.assert_close(scaled(x).uncertainty, method(x).uncertainty)
    torch.testing.assert_close(method(x * lengths).uncertainty, method(x).uncertainty)
    zeros = method(torch.zeros(2, 4, dtype=torch.float64)).uncertainty
    assert zeros.isfinite().all()
    assert float(zeros[0]) > 0
