"""Detectors of one pass against scikit-learn, linear algebra and loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from torch import nn

from baselines import CrossEntropy, KNNDistance, NNGuide, ViM
from baselines.base import Training, neighbours
from baselines.base.classifiers import logistic_regression
from tests.baselines.labelled_points import labelled_points, on_vectors


@pytest.mark.parametrize("block", [7, 65_536])
@pytest.mark.parametrize("k", [1, 10, 60])
def test_knn_distance_against_scikit_learn(model, loader, data, k, block, monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", block)
    method = KNNDistance(model, k=k).fit(loader, progress=False)
    x = normalize(model(data[0]).detach().numpy())
    new = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    queries = normalize(model(new).detach().numpy())
    distances, _ = NearestNeighbors(n_neighbors=k).fit(x).kneighbors(queries)
    np.testing.assert_allclose(method(new).uncertainty.numpy(), distances[:, -1], atol=1e-6)


def test_a_fraction_is_stored(model, loader, data):
    method = KNNDistance(model, k=5, fraction=0.25).fit(loader, progress=False)
    stored = method.parts["memory"].vectors
    assert stored.shape == (15, 4)
    everything = torch.nn.functional.normalize(model(data[0]).detach(), dim=1)
    assert bool((stored @ everything.T > 1 - 1e-5).any(1).all())
    method.seed = torch.Generator().manual_seed(5)
    other = method.fit(loader, progress=False).parts["memory"].vectors
    assert not torch.equal(stored, other)


@pytest.mark.parametrize("dimension", [0, 1, 3])
def test_against_the_principal_components(model, loader, data, dimension):
    torch.manual_seed(0)
    linear = nn.Linear(4, 3)
    method = ViM(model, classifier=linear, dimension=dimension).fit(loader, progress=False)
    w, b = linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy()
    origin = np.linalg.lstsq(w, -b, rcond=None)[0]  # the smallest z with W z + b = 0
    np.testing.assert_allclose(w @ origin + b, 0, atol=1e-6)

    def parts(inputs):
        z = model(inputs).detach().double().numpy()
        _, _, rows = np.linalg.svd(model(data[0]).detach().double().numpy() - origin)
        along = rows[:dimension]
        rest = (z - origin) - (z - origin) @ along.T @ along
        return np.linalg.norm(rest, axis=1), z @ w.T + b

    residual, logits = parts(data[0])
    alpha = logits.max(1).mean() / residual.mean()
    new = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    residual, logits = parts(new)
    expected = alpha * residual - np.log(np.exp(logits).sum(1))
    np.testing.assert_allclose(method(new).uncertainty.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", [None, "append", "2"])
def test_vim_of_a_fitted_classifier(model, loader, data, head):
    classifier = CrossEntropy(model, head=head, training=Training(epochs=2))
    classifier.fit(loader, progress=False)
    method = ViM.of(classifier, dimension=1).fit(loader, progress=False)
    torch.testing.assert_close(method(data[0]).mean, classifier(data[0]).mean)
    weight = classifier.classifier.weight.detach().double()
    torch.testing.assert_close(method.parts["memory"].weight, weight)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logistic_regression(n_classes):
    """Its probabilities are scikit-learn's, on inputs of any scale."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % n_classes
    x = torch.randn(90, 4, generator=g, dtype=torch.float64) + labels[:, None]
    scaled = x * torch.tensor([1.0, 10, 0.1, 1]) + 5
    weight, bias = logistic_regression(scaled, labels)
    z = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    expected = LogisticRegression().fit(z, labels.numpy()).predict_proba(z)
    p = (scaled @ weight.T + bias).softmax(1)
    np.testing.assert_allclose(p.numpy(), expected, atol=1e-4)


def energies(x, weight, bias):
    return [
        math.log(sum(math.exp(w @ row + c) for w, c in zip(weight, bias, strict=True))) for row in x
    ]


def slow(x, queries, weight, bias, k):
    """-e(q) times the mean of the k largest e(x_i) cos(q, x_i), with scikit-learn's cosine."""
    scaled = cosine_similarity(queries, x) * np.array(energies(x, weight, bias))
    guidance = [sum(sorted(row)[-k:]) / k for row in scaled]
    pairs = zip(energies(queries, weight, bias), guidance, strict=True)
    return [-energy * g for energy, g in pairs]


@settings(deadline=None, max_examples=40)
@given(labelled_points(), st.data())
def test_nnguide_against_scikit_learn(points, data):
    """With a classifier of any energies; zero rows, copies, one-member classes."""
    x, labels, queries = points
    torch.manual_seed(0)
    linear = nn.Linear(x.shape[1], int(labels.max()) + 1).double()
    k = data.draw(st.integers(1, len(x)))
    method = on_vectors(NNGuide, x, labels, k=k, classifier=linear)
    weight, bias = linear.weight.detach().numpy(), linear.bias.detach().numpy()
    expected = slow(x.numpy(), queries.numpy(), weight, bias, k)
    np.testing.assert_allclose(method(queries).uncertainty.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_without_a_classifier(model, loader, data):
    """The logistic regression of ViM; its energies are at least log C."""
    method = NNGuide(model, k=4).fit(loader, progress=False)
    x = model(data[0]).detach().double()
    weight, bias = (t.numpy() for t in logistic_regression(x, data[1]))
    assert min(energies(50 * x.numpy(), weight, bias)) >= math.log(3) - 1e-9
    new = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    queries = model(new).detach().double().numpy()
    expected = slow(x.numpy(), queries, weight, bias, 4)
    np.testing.assert_allclose(method(new).uncertainty.numpy(), expected, rtol=1e-4)


def test_nnguide_of_a_fitted_classifier(model, loader, data):
    classifier = CrossEntropy(model, training=Training(epochs=2)).fit(loader, progress=False)
    method = NNGuide.of(classifier, k=2).fit(loader, progress=False)
    weight = classifier.classifier.weight.detach().double()
    torch.testing.assert_close(method.parts["memory"].weight, weight)
    torch.testing.assert_close(method(data[0]).mean, classifier(data[0]).mean)
