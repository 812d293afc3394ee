"""Results of fitting: the head, the sizes, the modules that are learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.heads._locate import find_head, identity_head
from laplace_metric.heads._located import APPEND, HeadActivations, LocatedHead
from laplace_metric.inputs._batches import ModelInput


@dataclass(frozen=True)
class Sizes:
    """Sizes that a method is built for: features D, embedding Z, classes C."""

    features: int
    embedding: int
    classes: int

    def width(self, on: str) -> int:
        """Return Z or D, the length of what ``vectors`` gives."""
        return self.embedding if on == "embedding" else self.features


@dataclass(frozen=True)
class FittedParts:
    """The head, the sizes, the class labels [C] in order, and the modules that were learnt."""

    head: LocatedHead
    sizes: Sizes
    classes: Tensor
    parts: nn.ModuleDict


def vectors(activations: HeadActivations, on: str) -> Tensor:
    """Return the raw embeddings z [B, Z], or the features h [B, D]."""
    return activations.raw if on == "embedding" else activations.features


class Appended(nn.Module):
    """``layer(model(inputs))``: an identity-initialised layer that is trained and saved with it.

    Examples
    --------
    >>> Appended(nn.ReLU(), nn.Linear(3, 3))(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, model: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.model, self.appended = model, layer

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the embeddings [B, Z]."""
        output = self.model(*args, **kwargs)
        return self.appended(output.to(next(self.appended.parameters())))


def with_appended(model: nn.Module, inputs: ModelInput) -> tuple[Appended, nn.Module]:
    """Return the network with its new layer, and that layer: its head."""
    layer = find_head(model, inputs, APPEND).module
    return Appended(model, layer), layer


def identity_layer(model: nn.Module, size: int) -> nn.Linear:
    """Return a layer [size, size] to append to the model, of its dtype and on its device."""
    return identity_head(size, next(model.parameters(), torch.empty(0)))
