"""``Sentences``: a model of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from laplace_metric.errors import InputError
from laplace_metric.models._call_model import to_device
from laplace_metric.models._modules import check_module, device_of


class Sentences(nn.Module):
    """Embedding by ``model.encode`` of a list of B strings, as one batch [B, Z].

    Unlike ``encode``, it neither switches the model to evaluation mode nor stops gradients: the
    caller decides.

    Parameters
    ----------
    model : SentenceTransformer
        Model of sentence-transformers 5.4 or newer.
    prompt : str or None
        Text that is put before every text. None, the default: the default prompt of the model, if
        it has one.

    Raises
    ------
    InputError
        If the model is not one of sentence-transformers.
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
        """Return the embeddings [B, Z] of B strings.

        Raises
        ------
        InputError
            If the texts are not a list of strings.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"texts is a {type(texts).__name__}: pass a list of strings.")
        tokens = self.model.preprocess(list(texts), prompt=self.prompt)
        output = self.model(to_device(tokens, device_of(self.model)))
        embeddings: Tensor = output["sentence_embedding"]
        return embeddings[:, : self.model.truncate_dim]
