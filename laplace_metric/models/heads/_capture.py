"""A head inside a model, and one forward pass seen at it; hooks are gone afterwards.

A model is read as ``x -> h -> z = g(h; theta) -> f``: ``h`` [B, D] enters the head, ``z`` [B, Z] is
the raw embedding, and the model's output ``f`` is either ``z`` itself or ``z / |z|``.

Any number of threads may run one model at once: hooks stand on modules that all of them call, so
each hook looks away unless it is called by the thread that registered it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric.errors import HeadError
from laplace_metric.models._calling import Inputs, call_model, evaluation_mode
from laplace_metric.models._reading import as_batch, is_one_item
from laplace_metric.models.heads._activations import HeadActivations, LocatedHead, SeenInputs
from laplace_metric.models.heads._call_errors import check_returned, explain, shown
from laplace_metric.models.heads._pointwise import averaged, is_pointwise


@dataclass(frozen=True)
class HeadCall:
    """One run of a head: what entered it and what left it."""

    name: str
    features: Tensor
    raw: Tensor


def run_recorded(
    model: nn.Module, inputs: Inputs, heads: Mapping[str, tuple[nn.Module, nn.Module]]
) -> tuple[Tensor, list[HeadCall]]:
    """The model's output, and every run of ``heads``: name -> (where h enters, where z leaves).

    One item [D] whose embedding is one vector [Z] is run again as a batch of one.
    """
    entered: dict[str, Tensor] = {}
    calls: list[HeadCall] = []
    with _hooks(heads, entered, calls):
        output = _forward(model, inputs)
    if output.ndim == 1:
        return run_recorded(model, as_batch(inputs), heads)
    return output, calls


_REGISTRATION = threading.Lock()
"""PyTorch numbers hooks with a counter that two threads can read at once."""


@contextmanager
def _hooks(
    heads: Mapping[str, tuple[nn.Module, nn.Module]],
    entered: dict[str, Tensor],
    calls: list[HeadCall],
) -> Iterator[None]:
    """Record what this thread runs."""
    thread = threading.get_ident()

    def enter(name: str, parts: tuple[nn.Module, nn.Module]) -> Any:
        def record(module: nn.Module, args: tuple[Any, ...]) -> None:
            if threading.get_ident() == thread:
                # a linear layer leaves its input alone; a chain may start with an in-place one
                h = _pooled_at(parts, _tensor(name, args[0] if args else None))
                entered[name] = h if isinstance(module, nn.Linear) else h.clone()

        return record

    def leave(name: str, parts: tuple[nn.Module, nn.Module]) -> Any:
        def record(_module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
            if threading.get_ident() == thread:  # later steps may be in place
                z = _pooled_at(parts, _tensor(name, output)).clone()
                calls.append(HeadCall(name, entered[name], z))

        return record

    handles = []
    try:
        with _REGISTRATION:
            for name, parts in heads.items():
                handles.append(parts[0].register_forward_pre_hook(enter(name, parts)))
                handles.append(parts[1].register_forward_hook(leave(name, parts)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _pooled_at(parts: tuple[nn.Module, nn.Module], value: Tensor) -> Tensor:
    """What enters or leaves a head; of the maps [B, D, ...] of a 1x1 convolution their mean."""
    if value.ndim <= 2:
        return value
    conv = parts[0]
    alone = conv is parts[1] and is_pointwise(conv)
    return averaged(value) if alone and value.ndim == conv.weight.ndim else value


def _tensor(name: str, value: Any) -> Tensor:
    """What enters or leaves a head."""
    if not isinstance(value, Tensor):
        raise HeadError(f"head {name!r} is to map [B, D] to [B, Z]: it has {shown(value)}.")
    return value


def _forward(model: nn.Module, inputs: Inputs) -> Tensor:
    try:
        output = call_model(model, inputs)
    except Exception as error:
        explain(model, inputs, error)
        raise
    usual = isinstance(output, Tensor) and output.ndim == 2 and output.is_floating_point()
    if not usual or output.layout != torch.strided or output.is_meta:
        return check_returned(output, one_item=is_one_item(inputs))
    return output


def capture(model: nn.Module, head: LocatedHead, inputs: Inputs) -> HeadActivations:
    """One forward pass in eval mode; hooks and modes are put back before it returns."""
    with evaluation_mode(model):
        return run_captured(model, head, inputs)


def embeddings_from(model: nn.Module, inputs: Inputs) -> Tensor:
    """What the model returns [B, Z], without a look at its head; as ``capture``."""
    with evaluation_mode(model):
        return run_recorded(model, inputs, {})[0]


def run_captured(model: nn.Module, head: LocatedHead, inputs: Inputs) -> HeadActivations:
    """One forward pass in the model's present modes, with gradients where they are enabled.

    Of ``SeenInputs`` there is none.
    """
    if isinstance(inputs, SeenInputs):
        return inputs.at(head.name)
    if head.parts is None:
        return appended_activations(head.module, run_recorded(model, inputs, {})[0])
    output, calls = run_recorded(model, inputs, {head.name: head.parts})
    return captured(calls, output, head.name)


def appended_activations(module: nn.Module, output: Tensor) -> HeadActivations:
    """What an appended head makes of the model's output.

    Raises
    ------
    HeadError
        If it is not as wide as the head.
    """
    weight = next(module.parameters())
    if output.ndim != 2 or output.shape[1] != weight.shape[1]:
        raise HeadError(
            f"the model gives {shown(output)}, the appended head takes [B, {weight.shape[1]}]: "
            "pass the model that was fitted."
        )
    h = output.to(weight)
    with full_precision():
        z = module(h)
    return HeadActivations(h, z, z)


def captured(calls: Sequence[HeadCall], output: Tensor, name: str) -> HeadActivations:
    """The one run of a head [B, D] -> [B, Z], checked.

    Raises
    ------
    HeadError
        If it did not run once, or does not give the model's [B, Z].
    """
    if len(calls) != 1:
        raise HeadError(f"head {name!r} ran {len(calls)} times in one forward pass, not once.")
    features, raw = calls[0].features, calls[0].raw
    if features.ndim != 2 or raw.shape != output.shape:
        raise HeadError(
            f"head {name!r} maps {tuple(features.shape)} to {tuple(raw.shape)} and the model "
            f"returns {tuple(output.shape)}: the head must map [B, D] to the returned [B, Z]. "
            "Name another layer with head=..., or pass head='append' for a new linear layer after "
            "the model."
        )
    return HeadActivations(features, raw, output)
