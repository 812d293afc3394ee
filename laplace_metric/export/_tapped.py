"""A copy of a model that returns the inputs and the outputs of its head, without hooks."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import HeadError
from laplace_metric.heads._located import LocatedHead
from laplace_metric.heads._pointwise import PointwiseHead, averaged
from laplace_metric.models import Precomputed, Sentences
from laplace_metric.models._calling import call_model

Seen = dict[str, list[Tensor]]


class Tapped(nn.Module):
    """inputs -> (h [B, D], z [B, Z]), at least float32, by a copy of the model in evaluation mode.

    The copy's modules at both ends of the head are of a class of their own, derived from theirs,
    whose ``forward`` also notes its input or output for the call that is running.

    Parameters
    ----------
    model : nn.Module
        Model, which is copied.
    head : LocatedHead
        Head of this model.
    """

    def __init__(self, model: nn.Module, head: LocatedHead) -> None:
        super().__init__()
        memo: dict[int, Any] = {}
        self.model = _traceable(deepcopy(model, memo)).eval().requires_grad_(False)
        self.head = None
        self._seen: Seen = {"h": [], "z": []}
        if head.parts is None:
            self.head = deepcopy(head.module).eval().requires_grad_(False)
            return
        first, last = (memo[id(part)] for part in head.parts)
        self._pooled = isinstance(head.module, PointwiseHead)
        _tap(first, self._seen, "h")
        _tap(last, self._seen, "z")

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Run on the inputs of one batch, as a model is called (``inputs._batches.ModelInput``)."""
        entered, left = self._seen["h"], self._seen["z"]
        entered.clear()  # of a call that failed
        left.clear()
        output = call_model(self.model, inputs)
        if self.head is not None:
            h = output.to(next(self.head.parameters()).dtype)
            return at_least_float32(h), at_least_float32(self.head(h))
        if len(left) != 1:
            raise HeadError(f"the head ran {len(left)} times in one forward pass, not once.")
        h, z = entered.pop(), left.pop()
        if self._pooled:
            h, z = averaged(h), averaged(z)
        return at_least_float32(h), at_least_float32(z)


def _tap(module: nn.Module, seen: Seen, which: str) -> None:
    """Note h, which enters the module, or a copy of z, which a later step may change in place."""
    kind: Any = type(module)

    class Noting(kind):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            getattr(self, f"seen_{which}")[which].append(
                args[0] if which == "h" else output.clone()
            )
            return output

    Noting.__name__ = kind.__name__
    module.__class__ = Noting
    setattr(module, f"seen_{which}", seen)


class Tokens(nn.Module):
    """Tokens by name -> embeddings [B, Z]: what ``Sentences`` does behind its tokenizer."""

    def __init__(self, sentences: Sentences) -> None:
        super().__init__()
        self.model = sentences.model
        self.size = sentences.model.truncate_dim

    def forward(self, **tokens: Tensor) -> Tensor:
        """Return the embeddings [B, Z]."""
        output = self.model(tokens)
        embeddings: Tensor = output["sentence_embedding"]
        return embeddings[:, : self.size]


class _Arrays(nn.Module):
    """Embeddings as they are."""

    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def _traceable(model: nn.Module) -> nn.Module:
    """Return a model without what no graph holds: a tokenizer, and checks of numbers."""
    if isinstance(model, Sentences):
        return Tokens(model)
    return _Arrays() if isinstance(model, Precomputed) else model
