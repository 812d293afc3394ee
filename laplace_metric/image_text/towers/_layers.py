"""What both encoders are made of: pre-norm transformer layers of torch, and two learnt tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from laplace_metric._utils.validation import check_count, check_real
from laplace_metric.errors import InputError

STD = 0.02
"""Of tokens and positions at the start."""


def transformer(
    width: int,
    depth: int,
    heads: int,
    *,
    feedforward: int | None = None,
    dropout: float = 0.0,
    activation: Callable[[Tensor], Tensor] = nn.functional.gelu,
    epsilon: float = 1e-5,
) -> nn.TransformerEncoder:
    """Pre-norm layers with GELU, batch first, without a last norm.

    Raises
    ------
    InputError
        For sizes below 1, heads that do not divide the width, and a dropout outside of [0, 1).

    Examples
    --------
    >>> transformer(8, 2, 2)(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """
    check_count("depth", depth)
    if check_count("width", width) % check_count("heads", heads):
        raise InputError(f"width={width} is no multiple of heads={heads}: pass one that is.")
    if not 0 <= check_real("dropout", dropout) < 1:
        raise InputError(f"dropout={dropout!r}: pass a number in [0, 1).")
    layer = nn.TransformerEncoderLayer(
        width,
        heads,
        feedforward or 4 * width,
        dropout,
        activation,
        epsilon,
        batch_first=True,
        norm_first=True,
    )
    layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    for copy in layers.layers:  # it copies one layer, weights and all
        _draw(copy)
    return layers


def _draw(layer: nn.Module) -> None:
    for part in layer.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
        if isinstance(part, nn.MultiheadAttention):
            part._reset_parameters()


class TwoTokens(nn.Module):
    """Puts [CLS] and [UNC] before a sequence [B, T, W], and returns what becomes of the two.

    Examples
    --------
    >>> TwoTokens(8, 1, 2, 0.0)(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 2, 8])
    """

    def __init__(self, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.layers = transformer(width, depth, heads, dropout=dropout)
        self.tokens = nn.Parameter(STD * torch.randn(2, width))

    def forward(
        self, x: Float[Tensor, "B T W"], padding: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B 2 W"]:
        """Features of [CLS] and [UNC]; ``padding`` is True where there is nothing to see."""
        tokens = self.tokens.expand(len(x), -1, -1)
        if padding is not None:
            padding = nn.functional.pad(padding, (2, 0), value=False)
        y: Tensor = self.layers(torch.cat([tokens, x], 1), src_key_padding_mask=padding)
        return y[:, :2]
