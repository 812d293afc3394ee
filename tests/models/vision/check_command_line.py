"""``--model`` of torchvision, open_clip and timm; run by ``test_vision``."""

from __future__ import annotations

import open_clip
import pytest
import timm
import torch
import torchvision
from PIL import Image

from laplace_metric.cli._models import load_model
from laplace_metric.errors import InputError

X = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
GREY = Image.new("RGB", (300, 260), (90, 120, 30))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "vit_b_16"])
@torch.no_grad()
def test_a_classifier_of_torchvision_without_its_last_layer(name, monkeypatch):
    torch.manual_seed(0)
    whole = torchvision.models.get_model(name).eval()

    def states(self, *_, **__):
        return whole.state_dict()

    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", states)
    found = load_model(f"torchvision:{name}")
    last = [part for part in whole.modules() if isinstance(part, torch.nn.Linear)][-1]
    torch.testing.assert_close(last(found.model.eval()(X)), whole(X))
    assert found.transform(GREY).shape == (3, 224, 224)
    assert found.head == "append"


def test_names_that_are_near():
    with pytest.raises(InputError, match="Did you mean .*'resnet18'"):
        load_model("torchvision:resnet81")
    with pytest.raises(InputError, match=r"Did you mean .*'resnet18\.tv"):
        load_model("timm:resnt18")
    with pytest.raises(InputError, match="NAME/WEIGHTS. Weights of ViT-B-32: openai"):
        load_model("open_clip:ViT-B-32")


@torch.no_grad()
def test_the_image_tower_of_open_clip(tmp_path):
    torch.manual_seed(0)
    whole = open_clip.create_model("ViT-S-32-alt").eval()
    torch.save(whole.state_dict(), tmp_path / "weights.pt")
    found = load_model(f"open_clip:ViT-S-32-alt/{tmp_path / 'weights.pt'}")
    torch.testing.assert_close(found.model.eval()(X), whole.encode_image(X))
    assert found.transform(GREY).shape == (3, 224, 224)


def test_timm_needs_its_weights(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set, so that only models in the cache"):
        load_model("timm:vit_tiny_patch16_224")
    assert "vit_tiny_patch16_224" in timm.list_models()
