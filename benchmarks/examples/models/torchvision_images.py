"""A torchvision network: ``python -m benchmarks.examples.models.torchvision_images``.

Its last linear layer, ``fc``, is found and gets the posterior. Weights are random here; with the
internet, ``resnet18(weights="DEFAULT")`` has trained ones.
"""

from __future__ import annotations

import torch
from torchvision.models import resnet18

from benchmarks.examples.summary import shapes_and_times
from laplace_metric import LaplaceEmbedder


def run(n: int = 16) -> str:
    """A ResNet-18 that embeds in 64 dimensions."""
    images = torch.rand(n, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    return shapes_and_times(
        "torchvision ResNet-18", LaplaceEmbedder(resnet18(num_classes=64)), images, n
    )


if __name__ == "__main__":
    print(run())
