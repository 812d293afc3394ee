"""A copy of a model that returns the inputs and the outputs of its head, without hooks."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import ExportError, HeadError
from laplace_metric.heads._earlier_layers import row_of
from laplace_metric.heads._located import LocatedHead
from laplace_metric.heads._pointwise import PointwiseHead, averaged
from laplace_metric.models import Precomputed, PrecomputedLayers, Sentences
from laplace_metric.models._call_model import call_model

Seen = dict[str, list[Tensor]]


class Tapped(nn.Module):
    """inputs -> (h [B, D], z [B, Z], g [B, E] or None), by a copy of the model in evaluation mode.

    The copy's modules at both ends of the head are of a class of their own, derived from theirs,
    whose ``forward`` also notes its input or output for the call that is running, and so is an
    earlier layer. All are at least float32.

    Parameters
    ----------
    model : nn.Module
        Model, which is copied.
    head : LocatedHead
        Head of this model.
    layer : str or None
        Name of an earlier layer, whose input is returned. None, the default: none.

    Raises
    ------
    ExportError
        For an earlier layer of ``PrecomputedLayers``, whose arrays no graph computes.
    """

    def __init__(self, model: nn.Module, head: LocatedHead, layer: str | None = None) -> None:
        super().__init__()
        memo: dict[int, Any] = {}
        if isinstance(model, PrecomputedLayers):
            raise ExportError(
                "the model is PrecomputedLayers, whose arrays no graph computes: export the "
                "network that makes them."
            )
        self.model = _traceable(deepcopy(model, memo)).eval().requires_grad_(False)
        self.head = None
        self._seen: Seen = {"h": [], "z": [], "g": []}
        self._layer: nn.Module | None = None
        if layer is not None:
            self._layer = memo[id(model.get_submodule(layer))]
            _tap(self._layer, self._seen, "g")
        if head.parts is None:
            self.head = deepcopy(head.module).eval().requires_grad_(False)
            return
        first, last = (memo[id(part)] for part in head.parts)
        self._pooled = isinstance(head.module, PointwiseHead)
        _tap(first, self._seen, "h")
        _tap(last, self._seen, "z")

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run on the inputs of one batch, as a model is called (``inputs._batches.ModelInput``)."""
        entered, left = self._seen["h"], self._seen["z"]
        for noted in self._seen.values():
            noted.clear()  # of a call that failed
        output = call_model(self.model, inputs)
        g = None
        if self._layer is not None:
            rows = row_of(self._layer, self._seen["g"].pop(), same_size=True)
            g = None if rows is None else at_least_float32(rows)
        if self.head is not None:
            h = output.to(next(self.head.parameters()).dtype)
            return at_least_float32(h), at_least_float32(self.head(h)), g
        if len(left) != 1:
            raise HeadError(f"the head ran {len(left)} times in one forward pass, not once.")
        h, z = entered.pop(), left.pop()
        if self._pooled:
            h, z = averaged(h), averaged(z)
        return at_least_float32(h), at_least_float32(z), g


def _tap(module: nn.Module, seen: Seen, which: str) -> None:
    """Note h or g, which enters a module, or a copy of z, which a later step may change."""
    kind: Any = type(module)

    class Noting(kind):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            getattr(self, f"seen_{which}")[which].append(
                output.clone() if which == "z" else args[0]
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
