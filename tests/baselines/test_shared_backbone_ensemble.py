from __future__ import annotations

import math

import pytest
import torch

from baselines import SharedBackboneEnsemble
from baselines.base import Training
from baselines.base.probabilities import jensen_shannon
from baselines.shared_backbone_ensemble import EnsembleLoss
from laplace_metric.errors import InputError, UnknownNameError
from tests.baselines.contract import MethodContract
from tests.baselines.slow_losses import slow, small_batch


@pytest.fixture
def batch():
    return small_batch()


class TestEnsemble(MethodContract):
    def make(self, model):
        return SharedBackboneEnsemble(model, training=Training(epochs=2))


class TestSeparateMembers(MethodContract):
    def make(self, model):
        training = Training(epochs=2)
        return SharedBackboneEnsemble(model, loss="mean", score="jensen_shannon", training=training)


@pytest.mark.parametrize("kind", ["mixture", "mean"])
def test_loss(batch, kind):
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


def test_bad_input(model, batch):
    with pytest.raises(UnknownNameError, match="'mixture', 'mean'"):
        SharedBackboneEnsemble(model, loss="sum")
    with pytest.raises(UnknownNameError, match="'mixture', 'mean'"):
        EnsembleLoss(2, 2, kind="sum")
    with pytest.raises(UnknownNameError, match="score='norm'"):
        SharedBackboneEnsemble(model, score="norm")
    with pytest.raises(InputError, match="n_members=0"):
        SharedBackboneEnsemble(model, n_members=0)
    with pytest.raises(InputError, match="labels has 3 rows"):
        EnsembleLoss(3, 4).double()(batch[0], batch[1][:3])
