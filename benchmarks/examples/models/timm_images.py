"""A timm network on photographs: ``python -m benchmarks.examples.models.timm_images --data DIR``.

``num_classes=0`` leaves timm's pooled features without a linear layer, so the posterior gets one of
its own. The weights are those of EfficientNet-Lite0 on ImageNet, out of the extra ``pretrained``;
with the internet, ``timm.create_model(name, pretrained=True)`` has them of every network.
"""

from __future__ import annotations

from typing import Any

import timm
from torch import nn
from torchvision.transforms import Normalize

from benchmarks.encoders.pretrained import EfficientNetLite0
from benchmarks.examples.summary import DATA, IMAGES, Summary, command, look_at_photographs
from laplace_metric import LaplaceEmbedder


def network(num_classes: int = 1000) -> Any:
    """timm's EfficientNet-Lite0; the package has the same tensors in the same order."""
    model = timm.create_model("tf_efficientnet_lite0")
    weights = EfficientNetLite0().network.state_dict().values()
    model.load_state_dict(dict(zip(model.state_dict(), weights, strict=True)))
    if num_classes == 0:
        model.reset_classifier(0)
    return model


def run(data: str | None, limit: int = 400) -> Summary:
    """Photographs in [0, 1] are resized to 64 pixels and scaled to [-1, 1] first."""
    resized = nn.Upsample(size=(64, 64), mode="bilinear")
    model = nn.Sequential(resized, Normalize([0.5] * 3, [0.5] * 3), network(num_classes=0))
    embedder = LaplaceEmbedder(model, head="append")
    return look_at_photographs(
        "timm EfficientNet-Lite0 on CIFAR-10, FashionMNIST unknown", embedder, data, limit
    )


if __name__ == "__main__":
    command(__doc__, run, data=DATA, limit=IMAGES | {"default": 400})
