"""Features of images or texts: the output of an encoder, checked, in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric._utils.progress import ItemBar
from laplace_metric._utils.validation import check_floating
from laplace_metric.errors import DtypeError, InputError, NonFiniteError
from laplace_metric.heads._repeatable import check_same_again
from laplace_metric.inputs import Inputs, ModelInput, read_items
from laplace_metric.inputs._by_row import count_inputs
from laplace_metric.models._call_model import call_model, to_device
from laplace_metric.models._evaluation_mode import evaluation_mode
from laplace_metric.models._modules import device_of

Encoder = Callable[[Any], Tensor]
"""Inputs of B images or texts -> features [B, F], or [B, 2, F] of [CLS] and [UNC] tokens.

An ``nn.Module`` or any function.
"""
SIDES = ("images", "texts")


def encode(encoder: Encoder, inputs: ModelInput, name: str, *, grad: bool = False) -> Tensor:
    """Return features [B, F] or [B, 2, F] of one batch, float32 or float64 and finite.

    Raises
    ------
    InputError
        For anything else; ``name`` says of what.
    NonFiniteError
        For NaN and infinity.
    """
    if isinstance(encoder, nn.Module):
        moved = to_device(inputs, device_of(encoder))
        with nullcontext() if grad else evaluation_mode(encoder):
            features = call_model(encoder, moved)
    else:
        with torch.no_grad():
            features = encoder(inputs)
    n = count_inputs(name, inputs)
    two = isinstance(features, Tensor) and features.ndim == 3 and features.shape[1] == 2
    check_floating(f"features of {name}", features, "[B, 2, F]" if two else "[B, F]")
    if len(features) != n:
        raise InputError(f"the encoder gave {len(features)} features for {n} {name}.")
    values = at_least_float32(features)
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).flatten(1).any(1).nonzero()[0])
        raise NonFiniteError(f"features of {name} hold NaN or infinity, first in row {row}.")
    return values if grad else values.detach()


def encoded_blocks(
    encoder: Encoder, inputs: Inputs, *, progress: bool
) -> Iterator[Float[Tensor, "B ..."]]:
    """Yield the features of each batch, with a progress bar if there are several."""
    several = inputs.n_batches is None or inputs.n_batches > 1
    with ItemBar(f"Encoding {inputs.name}", inputs.count, shown=progress and several) as bar:
        for batch in inputs:
            features = encode(encoder, batch.inputs, inputs.name)
            yield features
            bar.advance(len(features))


def encode_all(encoder: Encoder, data: Any, name: str, *, progress: bool) -> Float[Tensor, "N ..."]:
    """Return features [N, F] or [N, 2, F] of everything that ``data`` holds."""
    return torch.cat(list(encoded_blocks(encoder, read_items(name, data), progress=progress)))


def encode_checked(
    encoder: Encoder, data: Any, name: str, *, progress: bool
) -> Float[Tensor, "N ..."]:
    """Return the features of everything, of an encoder that is found to be repeatable.

    Raises
    ------
    InputError
        If the encoder draws at random, or if features depend on the other rows of a batch.
    """
    inputs = read_items(name, data)
    first = next(iter(inputs)).inputs
    parts = list(encoded_blocks(encoder, inputs, progress=progress))
    check_same_again(
        encoder,
        lambda part: (encode(encoder, part, name),),
        first,
        (parts[0],),
    )
    return torch.cat(parts)


def check_towers(images: Tensor, texts: Tensor, tokens: str) -> None:
    """Check that both towers compute in one type, with the tokens that are asked for.

    Raises
    ------
    DtypeError
        For two types.
    InputError
        For tokens that are missing or not asked for.
    """
    for name, features in (("images", images), ("texts", texts)):
        if (features.ndim == 3) is not (tokens == "uncertainty"):
            has = "[CLS] and [UNC]" if features.ndim == 3 else "one vector"
            wanted = "head" if tokens == "uncertainty" else "uncertainty"
            raise InputError(
                f"tokens={tokens!r}, and the encoder of {name} gives {has} an input, features "
                f"{list(features.shape)}: pass tokens={wanted!r}, or another encoder."
            )
    if images.dtype != texts.dtype:
        raise DtypeError(
            f"features of images are {images.dtype}, those of texts {texts.dtype}: convert one "
            "encoder, with .float() or .double()."
        )
