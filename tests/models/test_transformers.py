"""True architectures of Hugging Face's transformers with random weights, small."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import HeadError, InputError
from laplace_metric.models import Call, Pooled
from tests.models.unchanged import fitted, unit

transformers = pytest.importorskip("transformers", reason="the extra 'models' is not installed")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT = {**SIZES, "vocab_size": 50, "max_position_embeddings": 16, "eos_token_id": 2}
VISION = {**SIZES, "image_size": 32, "patch_size": 16}
Y = torch.tensor([0, 1, 0, 1])
IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def tokens(side: str = "right") -> Any:
    """As a tokenizer gives them: texts of 3, 5, 7 and 4 tokens."""
    ids, mask = torch.zeros(4, 7, dtype=torch.int64), torch.zeros(4, 7, dtype=torch.int64)
    g = torch.Generator().manual_seed(1)
    for row, n in enumerate((3, 5, 7, 4)):
        part = slice(0, n) if side == "right" else slice(7 - n, 7)
        ids[row, part], mask[row, part] = torch.randint(3, 50, (n,), generator=g), 1
    return transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask})


def bert() -> Any:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**TEXT)).eval()


@torch.no_grad()
def alone(model: Any, given: Any) -> list[Tensor]:
    """Vectors of tokens of each text by itself, where nothing is padded."""
    pairs = zip(given["input_ids"], given["attention_mask"], strict=True)
    return [model(input_ids=i[m == 1][None]).last_hidden_state[0] for i, m in pairs]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_text_pooled_with_its_mask(pooling):
    model, given = bert(), tokens()
    take = {"mean": lambda t: t.mean(0), "cls": lambda t: t[0], "last": lambda t: t[-1]}[pooling]
    expected = torch.stack([take(part) for part in alone(model, given)])
    embedder = fitted(LaplaceEmbedder(Pooled(model, pooling), head="append"), given, Y)
    torch.testing.assert_close(embedder(given).mean, unit(expected), atol=1e-5, rtol=1e-4)


def test_a_field_of_its_own():
    model, given = bert(), tokens()
    expected = unit(model(**given).pooler_output)
    embedder = fitted(LaplaceEmbedder(Pooled(model, pooling=None), head="append"), given, Y)
    torch.testing.assert_close(embedder(given).mean, expected)
    with pytest.raises(HeadError, match="pooler.dense.*head='append'"):  # it ends in a tanh
        LaplaceEmbedder(Pooled(model, pooling=None)).fit([(given, Y)], progress=False)
    as_tuples = bert()
    as_tuples.config.return_dict = False
    placed = Pooled(as_tuples, pooling=None, field=1)
    torch.testing.assert_close(unit(placed(**given)), expected)


def test_images_and_their_classifier():
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**VISION, num_labels=8))
    given = transformers.BatchFeature({"pixel_values": IMAGES})
    expected = unit(model.eval()(IMAGES).logits)
    embedder = fitted(LaplaceEmbedder(Pooled(model, None, "logits")), given, Y)
    assert embedder.head_.module is model.classifier
    torch.testing.assert_close(embedder(given).mean, expected)


@pytest.mark.parametrize("tower", ["image", "text"])
def test_the_projection_of_a_clip_is_found(tower):
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=8)
    model = transformers.CLIPModel(config)
    given = {"pixel_values": IMAGES} if tower == "image" else dict(tokens())
    module = Pooled(Call(model, f"get_{tower}_features"), pooling=None)
    expected = unit(module.eval()(**given))
    embedder = fitted(LaplaceEmbedder(module), given, Y)
    found = {"image": model.visual_projection, "text": model.text_projection}[tower]
    assert embedder.head_.module is found
    torch.testing.assert_close(embedder(given).mean, expected)


def test_a_bare_model_names_the_adapter():
    with pytest.raises(HeadError, match=r"returned a BaseModelOutput.*\[4, 7, 32\].*Pooled"):
        LaplaceEmbedder(bert()).fit([(tokens(), Y)], progress=False)
    with pytest.raises(InputError, match=r"BertModel.*list of strings"):
        LaplaceEmbedder(bert()).fit([(["a", "b", "c", "d"], Y)], progress=False)
    lists = {name: part.tolist() for name, part in tokens().items()}
    with pytest.raises(HeadError, match=r"returned a BaseModelOutput.*\[4, 7, 32\].*Pooled"):
        LaplaceEmbedder(bert()).fit([(lists, Y)], progress=False)  # lists are read as arrays


def test_half_precision():
    given = tokens()
    exact = LaplaceEmbedder(Pooled(bert()), head="append").fit([(given, Y)], progress=False)
    short = LaplaceEmbedder(Pooled(bert().bfloat16()), head="append")
    fitted(short, given, Y)
    found = short(given)
    assert found.mean.dtype == found.variance.dtype == torch.float32
    torch.testing.assert_close(found.mean, exact(given).mean, atol=0.02, rtol=0)
    torch.testing.assert_close(found.variance, exact(given).variance, atol=0, rtol=0.1)
