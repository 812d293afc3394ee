"""Losses and scores of classifiers against loops."""

from __future__ import annotations

import math

import pytest
import torch

from baselines import CrossEntropy, SharedBackboneEnsemble
from baselines.base import Training
from baselines.base.probabilities import jensen_shannon
from baselines.cross_entropy import LinearCrossEntropyLoss
from baselines.loss_prediction import LossPredictionLoss
from baselines.shared_backbone_ensemble import EnsembleLoss


@pytest.fixture
def batch():
    """Embeddings [7, 3] in float64 and labels [7] of 4 classes."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(7, 3, generator=g, dtype=torch.float64), torch.arange(7) % 4


def slow(z, labels, weight, bias):
    """Cross-entropy of every input, in loops."""
    losses = []
    for row, label in zip(z.tolist(), labels.tolist(), strict=True):
        logits = [
            sum(w * x for w, x in zip(ws, row, strict=True)) + b
            for ws, b in zip(weight.tolist(), bias.tolist(), strict=True)
        ]
        losses.append(math.log(sum(map(math.exp, logits))) - logits[label])
    return losses


def test_cross_entropy(batch):
    z, labels = batch
    loss = LinearCrossEntropyLoss(3, 4).double()
    expected = slow(z, labels, loss.classifier.weight, loss.classifier.bias)
    assert loss(z, labels).item() == pytest.approx(sum(expected) / 7, rel=1e-12)
    assert loss.each(z, labels).tolist() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), z.requires_grad_())


def test_uncertainty_is_the_entropy(model, loader, data):
    method = CrossEntropy(model, training=Training(epochs=2)).fit(loader, progress=False)
    p = method.classifier(method.model(data[0])).softmax(-1)
    expected = torch.distributions.Categorical(p).entropy().detach()
    torch.testing.assert_close(method(data[0]).uncertainty, expected)


def test_loss_prediction(batch):
    z, labels = batch
    loss = LossPredictionLoss(3, 4, weight=0.3).double()
    u = torch.linspace(0, 3, 7, dtype=torch.float64, requires_grad=True)
    each = slow(z, labels, loss.classifier.weight, loss.classifier.bias)
    expected = sum(a + 0.3 * (b - a) ** 2 for a, b in zip(each, u.tolist(), strict=True)) / 7
    assert loss(z, labels, u).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda u: loss(z, labels, u), u)


def test_the_predicted_loss_is_detached(batch):
    """To the embeddings and the classifier the loss has the gradient of the cross-entropy alone."""
    z, labels = batch
    z.requires_grad_()
    loss, u = LossPredictionLoss(3, 4, weight=0.3).double(), torch.full((7,), 5.0).double()
    inputs = (z, *loss.classifier.parameters())
    gradients = torch.autograd.grad(loss(z, labels, u), inputs)
    alone = torch.autograd.grad(loss.each(z, labels).mean(), inputs)
    for a, b in zip(gradients, alone, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", ["mixture", "mean"])
def test_ensemble_loss(batch, kind):
    z, labels = batch
    loss = EnsembleLoss(3, 4, n_members=3, kind=kind).double()
    weight, bias = loss.classifiers.weight.view(3, 4, 3), loss.classifiers.bias.view(3, 4)
    members = [slow(z, labels, w, b) for w, b in zip(weight, bias, strict=True)]  # [M][B]
    if kind == "mean":
        expected = sum(map(sum, members)) / 21
    else:
        columns = zip(*members, strict=True)
        expected = sum(-math.log(sum(math.exp(-x) for x in c) / 3) for c in columns) / 7
    assert loss(z, labels).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), z.requires_grad_())


def test_scores(model, loader, data):
    method = SharedBackboneEnsemble(model, training=Training(epochs=2))
    method.fit(loader, progress=False)
    logits = method.parts["loss"].logits(method.model(data[0])).detach()
    p = logits.softmax(-1).mean(0)
    expected = torch.distributions.Categorical(p).entropy()
    torch.testing.assert_close(method(data[0]).uncertainty, expected)
    method.score = "jensen_shannon"
    torch.testing.assert_close(method(data[0]).uncertainty, jensen_shannon(logits))
