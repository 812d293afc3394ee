from __future__ import annotations

import pytest
import torch

from baselines import LossPrediction
from baselines.base import Training
from baselines.loss_prediction import LossPredictionLoss
from laplace_metric.errors import InputError, UnknownNameError
from tests.baselines.contract import MethodContract
from tests.baselines.slow_losses import slow, small_batch


@pytest.fixture
def batch():
    return small_batch()


class TestLossPrediction(MethodContract):
    def make(self, model):
        return LossPrediction(model, training=Training(epochs=2), hidden=8)


class TestOnFeatures(MethodContract):
    def make(self, model):
        return LossPrediction(model, training=Training(epochs=2), hidden=8, on="features")


def test_loss(batch):
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


def test_bad_input(model, batch):
    loss = LossPredictionLoss(3, 4).double()
    with pytest.raises(InputError, match="one number for each of the 7"):
        loss(*batch, torch.zeros(7, 1))
    with pytest.raises(InputError, match="weight=0"):
        LossPrediction(model, weight=0)
    with pytest.raises(InputError, match="weight=-1"):
        LossPredictionLoss(3, 4, weight=-1)
    with pytest.raises(UnknownNameError, match="on='head'"):
        LossPrediction(model, on="head")
