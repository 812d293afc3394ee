"""A vision transformer of timm with a linear head, and without one; run by ``test_vision``."""

from __future__ import annotations

import pytest
import timm
import torch

from benchmarks.encoders.pretrained import EfficientNetLite0
from benchmarks.examples.models import timm_images
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import HeadError
from tests.models.unchanged import fitted, unit

X = torch.rand(4, 3, 224, 224, generator=torch.Generator().manual_seed(0))
Y = torch.arange(4) % 2


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_the_linear_head_is_found():
    model = timm.create_model("vit_tiny_patch16_224", num_classes=64, drop_rate=0.5).eval()
    expected = unit(model(X))
    embedder = fitted(LaplaceEmbedder(model), X, Y)
    assert embedder.head_.module is model.head
    torch.testing.assert_close(embedder(X).mean, expected)


def test_features_without_a_head_get_one():
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0).eval()
    expected = unit(model(X))
    with pytest.raises(HeadError, match="head='append'"):
        LaplaceEmbedder(model).fit([(X, Y)], progress=False)
    embedder = fitted(LaplaceEmbedder(model, head="append"), X, Y)
    torch.testing.assert_close(embedder(X).mean, expected)


def test_unpooled_features_name_the_adapter():
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, global_pool="")
    with pytest.raises(HeadError, match=r"a tensor.*\[4, 197, 192\].*models.Pooled"):
        LaplaceEmbedder(model, head="append").fit([(X, Y)], progress=False)


def test_the_example_has_the_published_weights():
    x = X[:, :, :64, :64]
    with torch.no_grad():
        expected = EfficientNetLite0(64)(x)
        found = timm_images.network(num_classes=0).eval()(2 * x - 1)
    torch.testing.assert_close(found, expected)


def test_the_example(real_data):
    result = timm_images.run(str(real_data), limit=120)
    assert result.recall > 0.2  # ten classes
    assert result.unknown_auroc > 0.75  # clothes against photographs
