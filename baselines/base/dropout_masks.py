"""Dropout at test time without touching the model: masks are put on by hooks, drawn by a generator.

The model stays in eval mode (so batch norm keeps its statistics and ``nn.Dropout`` passes its input
through); a hook on each dropout layer multiplies by a Bernoulli mask over ``1 - p``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.validation import check_dense
from laplace_metric.errors import HeadError
from laplace_metric.models._modules import check_module

ELEMENTWISE = (nn.Dropout,)
CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

MaskMaker = Callable[[str, tuple[int, ...], float, Tensor], Tensor]
"""(layer name, shape of the mask, rate, its input) -> mask that broadcasts with the input."""


def dropout_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the active dropout layers of a model, by name.

    Raises
    ------
    HeadError
        If there is none with a rate above 0: then there is nothing to sample.
    """
    layers = find_dropout(model)
    if not layers:
        raise HeadError(
            f"{type(model).__name__} has no nn.Dropout layer with p > 0, so MC dropout has nothing "
            "to sample: train it with dropout layers (a functional F.dropout is not seen)."
        )
    return layers


def find_dropout(model: nn.Module) -> dict[str, nn.Module]:
    """Return the dropout layers with a rate above 0, by name; perhaps none."""
    check_module(model)
    kinds = (*ELEMENTWISE, *CHANNELWISE)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, kinds) and module.p > 0
    }


def mask_shape(layer: nn.Module, x: Tensor) -> tuple[int, ...]:
    """Return shape of a mask for x: like x, or one number a channel for the channel-wise layers."""
    if isinstance(layer, CHANNELWISE):
        return (*x.shape[:2], *(1 for _ in x.shape[2:]))
    return tuple(x.shape)


def bernoulli_mask(
    shape: tuple[int, ...], rate: float, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Draw entries 1/(1-p) with probability 1-p, else 0, in the dtype and device of ``like``."""
    mask = torch.empty(shape, dtype=like.dtype, device=like.device)
    return mask.bernoulli_(1 - rate, generator=generator).div_(1 - rate if rate < 1 else 1)


@contextmanager
def masked(layers: dict[str, nn.Module], make: MaskMaker) -> Iterator[None]:
    """Multiply the input of each layer by ``make(...)`` inside; hooks are removed at the end."""

    def hook(name: str) -> Any:
        def apply(layer: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
            check_dense(f"what enters {type(layer).__name__} {name!r}", output)
            rate = float(layer.p)  # type: ignore[arg-type]
            return output * make(name, mask_shape(layer, output), rate, output)

        return apply

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
