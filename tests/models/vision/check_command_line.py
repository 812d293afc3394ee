"""Files of the page "Models" for ``--model``, with weights drawn here; run by ``test_vision``."""

from __future__ import annotations

import sys
from pathlib import Path

import open_clip
import pytest
import timm
import torch
import torchvision
from PIL import Image

from laplace_metric.cli._models import LoadedModel, load_model
from tests.models.page import file_of_the_page

X = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
GREY = Image.new("RGB", (300, 260), (90, 120, 30))


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """What ``--model my_model:embedder`` gives of a file of the page."""
    monkeypatch.chdir(tmp_path)

    def load(library: str) -> LoadedModel:
        monkeypatch.delitem(sys.modules, "my_model", raising=False)
        Path("my_model.py").write_text(file_of_the_page(library))
        return load_model("my_model:embedder")

    return load


@torch.no_grad()
def test_timm(loaded, monkeypatch):
    create, made = timm.create_model, []

    def drawn(name, pretrained, **more):
        assert pretrained
        made.append(create(name, **more).eval())
        return made[-1]

    monkeypatch.setattr(timm, "create_model", drawn)
    found = loaded("timm")
    torch.testing.assert_close(found.model(X), made[0](X))
    assert found.model(X).shape == (2, 512)
    assert found.transform(GREY).shape == (3, 224, 224)


@torch.no_grad()
def test_torchvision(loaded, monkeypatch):
    torch.manual_seed(0)
    whole = torchvision.models.resnet18().eval()

    def states(self, *_, **__):
        return whole.state_dict()

    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", states)
    found = loaded("torchvision")
    torch.testing.assert_close(whole.fc(found.model.eval()(X)), whole(X))
    assert found.transform(GREY).shape == (3, 224, 224)


@torch.no_grad()
def test_open_clip(loaded, monkeypatch):
    create, made = open_clip.create_model_and_transforms, []

    def drawn(name, pretrained):
        assert pretrained == "openai"
        made.append(create("ViT-S-32-alt"))
        return made[-1]

    monkeypatch.setattr(open_clip, "create_model_and_transforms", drawn)
    found = loaded("open_clip")
    torch.testing.assert_close(found.model.eval()(X), made[0][0].eval().encode_image(X))
    assert found.transform(GREY).shape == (3, 224, 224)
