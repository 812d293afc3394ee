from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity
from torch import nn

from baselines import CrossEntropy, NNGuide
from baselines.base import Training, neighbours
from baselines.base.classifiers import logistic_regression
from laplace_metric.errors import InputError
from tests.baselines.contract import MethodContract
from tests.baselines.labelled_points import labelled_points, on_vectors


class TestNNGuide(MethodContract):
    def make(self, model):
        return NNGuide(model)


class TestFractionOfFeatures(MethodContract):
    def make(self, model):
        return NNGuide(model, k=3, fraction=0.5, on="features")


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
def test_against_scikit_learn(points, data):
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


@pytest.mark.parametrize("block", [1, 7])
def test_blocks_change_nothing(model, loader, data, block, monkeypatch):
    expected = NNGuide(model).fit(loader, progress=False)(data[0]).uncertainty
    monkeypatch.setattr(neighbours, "BLOCK", block)
    torch.testing.assert_close(
        NNGuide(model).fit(loader, progress=False)(data[0]).uncertainty, expected
    )


def test_of_a_fitted_classifier(model, loader, data):
    classifier = CrossEntropy(model, training=Training(epochs=2)).fit(loader, progress=False)
    method = NNGuide.of(classifier, k=2).fit(loader, progress=False)
    weight = classifier.classifier.weight.detach().double()
    torch.testing.assert_close(method.parts["memory"].weight, weight)
    torch.testing.assert_close(method(data[0]).mean, classifier(data[0]).mean)


def test_far_directions_are_less_certain():
    g = torch.Generator().manual_seed(0)
    centres = torch.tensor([[5.0, 0, 0], [0, 5, 0]])
    labels = torch.arange(60) % 2
    x = centres[labels] + 0.1 * torch.randn(60, 3, generator=g)
    method = on_vectors(NNGuide, x, labels)
    near, ortho, opposite = method(torch.tensor([[5.0, 0, 0], [0, 0, 5], [-5, -5, 0]])).uncertainty
    assert near < ortho < opposite


def test_bank(model, loader):
    method = NNGuide(model, k=5, fraction=0.25).fit(loader, progress=False)
    assert method.parts["memory"].bank.shape == (15, 4)
    with pytest.raises(InputError, match="k=50, but only 30 of 60"):
        NNGuide(model, k=50, fraction=0.5).fit(loader, progress=False)
    with pytest.raises(InputError, match="fraction=0"):
        NNGuide(model, fraction=0.0)
    with pytest.raises(InputError, match="k=0"):
        NNGuide(model, k=0)
    with pytest.raises(InputError, match="classifier takes 8 numbers"):
        NNGuide(model, classifier=nn.Linear(8, 3)).fit(loader, progress=False)
