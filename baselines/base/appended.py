"""A network with a new linear layer at its end, for models without one that are trained."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from laplace_metric.models import Inputs
from laplace_metric.models.heads import APPEND, find_head


class Appended(nn.Module):
    """``layer(model(inputs))``: an identity-initialised layer that is trained and saved with it.

    Examples
    --------
    >>> import torch
    >>> Appended(nn.ReLU(), nn.Linear(3, 3))(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, model: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.model, self.appended = model, layer

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """[B, Z]."""
        output = self.model(*args, **kwargs)
        return self.appended(output.to(next(self.appended.parameters())))


def with_appended(model: nn.Module, inputs: Inputs) -> tuple[Appended, nn.Module]:
    """The network with its new layer, and that layer: its head."""
    layer = find_head(model, inputs, APPEND).module
    return Appended(model, layer), layer
