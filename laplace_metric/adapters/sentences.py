"""A model of sentence-transformers as a module: strings in, one tensor out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from laplace_metric.batches import device_of, to_device
from laplace_metric.errors import InputError
from laplace_metric.wrapped import check_module


class Sentences(nn.Module):
    """A list of B strings -> what ``model.encode`` gives for them [B, Z], as one batch.

    Unlike ``encode``, it neither switches the model to evaluation mode nor stops gradients, and
    what it returns can be differentiated: what calls it decides.

    Parameters
    ----------
    model : SentenceTransformer
    prompt : str or None
        Stands before every text; None: the model's default prompt, if it has one.

    Raises
    ------
    InputError
        If the model is none of sentence-transformers, or its inputs are no strings.
    """

    model: Any

    def __init__(self, model: nn.Module, prompt: str | None = None) -> None:
        super().__init__()
        self.model = check_module(model)
        if not callable(getattr(model, "preprocess", None)):
            raise InputError(
                f"model is a {type(model).__name__}: pass a SentenceTransformer of "
                "sentence-transformers 5.4 or newer (it needs model.preprocess)."
            )
        default = self.model.prompts.get(self.model.default_prompt_name)
        self.prompt: str | None = default if prompt is None else prompt

    def forward(self, texts: Sequence[str]) -> Tensor:
        """B strings -> [B, Z]."""
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"texts is a {type(texts).__name__}: pass a list of strings.")
        tokens = self.model.preprocess(list(texts), prompt=self.prompt)
        output = self.model(to_device(tokens, device_of(self.model)))
        embeddings: Tensor = output["sentence_embedding"]
        return embeddings[:, : self.model.truncate_dim]
