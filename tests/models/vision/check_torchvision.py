"""A ResNet of torchvision, and its example; run by ``test_vision``."""

from __future__ import annotations

import torch
from torchvision.models import resnet18

from benchmarks.examples.models import torchvision_images
from laplace_metric import LaplaceEmbedder
from tests.models.unchanged import fitted, unit


def test_the_last_layer_is_found():
    torch.manual_seed(0)
    x, y = torch.rand(6, 3, 64, 64), torch.arange(6) % 3
    model = resnet18(num_classes=16).eval()
    expected = unit(model(x))
    embedder = fitted(LaplaceEmbedder(model), x, y)
    assert embedder.head_.module is model.fc
    torch.testing.assert_close(embedder(x).mean, expected)


def test_the_example_says_that_its_weights_are_random():
    found = torchvision_images.run(4)
    assert "weights are random" in found
    assert "'fc'" in found
    assert "[4, 64], [4, 64]" in found
