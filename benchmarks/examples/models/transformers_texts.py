"""A model of transformers and its tokenizer.

    python -m benchmarks.examples.models.transformers_texts

The loader yields what the tokenizer gives; the mean over the tokens leaves padding out. MiniLM's
weights come with the extra ``pretrained``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import AutoModel, AutoTokenizer

from benchmarks.encoders.pretrained import minilm_folder
from benchmarks.examples.summary import TEXTS, Summary, command
from benchmarks.examples.texts import look
from laplace_metric import LaplaceEmbedder
from laplace_metric.models import Pooled


def run(limit: int | None = None) -> Summary:
    """MiniLM as transformers has it: vectors of tokens."""
    tokenizer: Any = AutoTokenizer.from_pretrained(minilm_folder())
    tokens = partial(tokenizer, padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(minilm_folder())
    embedder = LaplaceEmbedder(Pooled(model, "mean"), head="append")
    return look("transformers MiniLM, mean over tokens", embedder, limit, tokens)


if __name__ == "__main__":
    command(__doc__, run, limit=TEXTS)
