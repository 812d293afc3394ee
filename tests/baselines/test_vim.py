from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from baselines import CrossEntropy, ViM
from baselines.base import Training
from baselines.base.classifiers import logistic_regression
from laplace_metric.errors import InputError, LabelError
from tests.baselines.contract import MethodContract


class TestViM(MethodContract):
    def make(self, model):
        return ViM(model)


class TestOnFeatures(MethodContract):
    def make(self, model):
        return ViM(model, on="features", dimension=3)


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
def test_of_a_fitted_classifier(model, loader, data, head):
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


def test_bad_input(model, loader):
    with pytest.raises(InputError, match="dimension=-1"):
        ViM(model, dimension=-1)
    with pytest.raises(InputError, match="dimension=4 leaves nothing over of 4"):
        ViM(model, dimension=4).fit(loader, progress=False)
    with pytest.raises(InputError, match="classifier takes 8 numbers, the model's embedding has 4"):
        ViM(model, classifier=nn.Linear(8, 3)).fit(loader, progress=False)
    with pytest.raises(LabelError, match="single class"):
        logistic_regression(torch.randn(4, 2), torch.zeros(4, dtype=torch.long))
