from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from baselines import ClassDropout
from baselines.base import Training
from laplace_metric.heads._located import HeadActivations


def linear_model(inside=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(inside), nn.Linear(3, 3))


def fitted(model, data, **settings):
    x, y = data[0][:, :3], data[1]
    method = ClassDropout(model, training=Training(epochs=20, learning_rate=0.03), **settings)
    return method.fit([(x, y)], progress=False), x[:5]


def exact_entropy(method, x, rate_inside):
    """Over all 2^3 masks of the classifier, times 2^3 of the input."""
    loss, layer, p = method.parts["loss"], method.model[1], method.rate
    mean = 0.0
    for bits in itertools.product([0, 1], repeat=3):
        for more in itertools.product([0, 1], repeat=3) if rate_inside else [(1, 1, 1)]:
            chance = math.prod(1 - p if bit else p for bit in bits)
            if rate_inside:
                chance *= math.prod(1 - rate_inside if bit else rate_inside for bit in more)
            z = layer(x * torch.tensor(more) / (1 - rate_inside))
            mean = mean + chance * loss.classifier(z * torch.tensor(bits) / (1 - p)).softmax(-1)
    return torch.distributions.Categorical(mean.detach()).entropy()


@pytest.mark.parametrize("inside", [0.0, 0.4])
def test_uncertainty_converges_to_all_masks(data, inside):
    method, x = fitted(linear_model(inside), data, rate=0.25, n_samples=4000)
    expected = exact_entropy(method, 4 * x, inside)
    torch.testing.assert_close(method(4 * x).uncertainty, expected, rtol=0, atol=0.02)
    if inside:  # its masks matter
        method.model[0].p = 0.0
        assert (method(4 * x).uncertainty - expected).abs().max() > 0.04
    method.rate = 0.0  # and so do those of the classifier
    assert (method(4 * x).uncertainty - expected).abs().max() > 0.1


def test_the_loss_drops(model, data):
    """In training the classifier sees z with some coordinates 0, others over 1 - p."""
    method, x = fitted(linear_model(), data, rate=0.5)
    dropped = []
    handle = method.parts["loss"].classifier.register_forward_pre_hook(
        lambda _m, args: dropped.append(args[0])
    )
    method.parts.train()
    z = method.model(x)
    method.objective(HeadActivations(x, z, z), torch.tensor([0, 1, 2, 0, 1]))
    handle.remove()
    ratio = (dropped[0] / z).detach()
    assert set(ratio.round(decimals=4).flatten().tolist()) == {0.0, 2.0}
