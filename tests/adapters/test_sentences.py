"""``Sentences`` on a small stand-in; ``tests/models`` has the library itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.models import Sentences

TEXTS, Y = ["one", "three", "of", "eleven"], torch.tensor([0, 1, 0, 1])


class Letters(nn.Module):
    """As sentence-transformers: strings are prepared outside of ``forward``, which takes a dict."""

    def __init__(self, default=None, truncate_dim=None) -> None:
        super().__init__()
        self.linear = nn.Linear(26, 6)
        self.prompts = {"query": "search: ", "plain": ""}
        self.default_prompt_name, self.truncate_dim = default, truncate_dim

    def preprocess(self, texts, prompt=None):
        letters = [[ord(c) - 97 for c in f"{prompt or ''}{t}" if c.isalpha()] for t in texts]
        counts = [torch.bincount(torch.tensor(row), minlength=26) for row in letters]
        return {"counts": torch.stack(counts).float(), "texts": texts}

    def forward(self, features):
        return {**features, "sentence_embedding": self.linear(features["counts"])}


def test_strings_in_one_tensor_out():
    model = Letters()
    found = Sentences(model)(TEXTS)
    assert found.shape == (4, 6)
    assert found.requires_grad
    assert not found.is_inference()
    one = Sentences(model)(tuple(TEXTS[2:3]))
    torch.testing.assert_close(
        one, model.linear.bias + model.linear.weight[:, [14, 5]].sum(1)[None]
    )


def test_prompts():
    model = Letters(default="query")
    plain = Letters()
    plain.load_state_dict(model.state_dict())
    prompted = [f"search: {text}" for text in TEXTS]
    torch.testing.assert_close(Sentences(model)(TEXTS), Sentences(plain)(prompted))
    torch.testing.assert_close(Sentences(model, prompt="")(TEXTS), Sentences(plain)(TEXTS))
    torch.testing.assert_close(Sentences(plain, "search: ")(TEXTS), Sentences(plain)(prompted))


def test_its_linear_head_is_found():
    model = Letters()
    embedder = LaplaceEmbedder(Sentences(model)).fit([(TEXTS, Y)], progress=False)
    assert embedder.head_.module is model.linear
    expected = nn.functional.normalize(Sentences(model)(TEXTS), dim=-1).detach()
    torch.testing.assert_close(embedder(TEXTS).mean, expected)


def test_errors():
    with pytest.raises(InputError, match=r"model.*Linear.*5.4 or newer"):
        Sentences(nn.Linear(2, 2))
    for texts in ("one", [1, 2]):
        with pytest.raises(InputError, match="texts is a .*list of strings"):
            Sentences(Letters())(texts)
    with pytest.raises(InputError, match=r"Letters.*list of strings.*Sent"):
        LaplaceEmbedder(Letters()).fit([(TEXTS, Y)], progress=False)
    prepared = {"features": Letters().preprocess(TEXTS)}
    fitted = LaplaceEmbedder(Letters()).fit([(prepared, Y)], progress=False)  # known by its name
    assert fitted(prepared).mean.shape == (4, 6)
    with pytest.raises(InputError, match=r"'counts', 'texts' .*as model\(\*\*inputs\)"):
        LaplaceEmbedder(Letters()).fit([(Letters().preprocess(TEXTS), Y)], progress=False)
