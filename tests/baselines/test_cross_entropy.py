from __future__ import annotations

import pytest
import torch
from torch import nn

from baselines import CrossEntropy
from baselines.base import Training
from baselines.cross_entropy import LinearCrossEntropyLoss
from laplace_metric.errors import InputError
from tests.baselines.contract import MethodContract
from tests.baselines.slow_losses import slow, small_batch


class TestCrossEntropy(MethodContract):
    def make(self, model):
        return CrossEntropy(model, training=Training(epochs=2))


@pytest.fixture
def batch():
    return small_batch()


def test_loss(batch):
    z, labels = batch
    loss = LinearCrossEntropyLoss(3, 4).double()
    expected = slow(z, labels, loss.classifier.weight, loss.classifier.bias)
    assert loss(z, labels).item() == pytest.approx(sum(expected) / 7, rel=1e-12)
    assert loss.each(z, labels).tolist() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), z.requires_grad_())


def test_loss_bad_input(batch):
    loss = LinearCrossEntropyLoss(3, 4).double()
    with pytest.raises(InputError, match="labels has 6 rows"):
        loss(batch[0], batch[1][:6])
    with pytest.raises(InputError, match=r"pass \[B, Z\]"):
        loss(batch[0][0], batch[1])


def test_uncertainty_is_the_entropy(model, loader, data):
    method = CrossEntropy(model, training=Training(epochs=2)).fit(loader, progress=False)
    p = method.classifier(method.model(data[0])).softmax(-1)
    expected = torch.distributions.Categorical(p).entropy().detach()
    torch.testing.assert_close(method(data[0]).uncertainty, expected)


@pytest.mark.parametrize("pick", [lambda m: m[2], lambda m: m[1:], lambda m: "2", lambda m: None])
def test_head_is_followed_into_the_copy(pick, model, loader, data):
    training = Training(epochs=1)
    method = CrossEntropy(model, head=pick(model), training=training).fit(loader, progress=False)
    reference = CrossEntropy(model, training=training).fit(loader, progress=False)
    torch.testing.assert_close(method(data[0]).mean, reference(data[0]).mean)
    refitted = method.fit(loader, progress=False)
    assert isinstance(refitted.fitted_.head.module, nn.Module)
