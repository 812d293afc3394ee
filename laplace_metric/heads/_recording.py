"""Run a model and record what enters and leaves its heads.

Any number of threads may run one model at once: the hooks are registered on modules that all of
them call, so each hook ignores the calls of other threads than the one that registered it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.errors import HeadError
from laplace_metric.heads._model_errors import explain
from laplace_metric.heads._model_output import check_returned
from laplace_metric.heads._pointwise import averaged, is_pointwise
from laplace_metric.inputs._batches import ModelInput, is_one_item
from laplace_metric.inputs._shown import shown
from laplace_metric.models._call_model import call_model


@dataclass(frozen=True)
class HeadCall:
    """One run of a head: what entered it and what left it."""

    name: str
    features: Tensor
    raw: Tensor


def run_recorded(
    model: nn.Module, inputs: ModelInput, heads: Mapping[str, tuple[nn.Module, nn.Module]]
) -> tuple[Tensor, list[HeadCall]]:
    """Return the model's output, and every run of ``heads``: name -> (entry of h, exit of z).

    One item [D] whose embedding is one vector [Z] is run again as a batch of one.
    """
    entered: dict[str, Tensor] = {}
    calls: list[HeadCall] = []
    with _hooks(heads, entered, calls):
        output = _forward(model, inputs)
    if output.ndim == 1:
        return run_recorded(model, inputs[None], heads)
    return output, calls


REGISTRATION = threading.Lock()
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
        with REGISTRATION:
            for name, parts in heads.items():
                _check_hooked(name, parts)
                handles.append(parts[0].register_forward_pre_hook(enter(name, parts)))
                handles.append(parts[1].register_forward_hook(leave(name, parts)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_hooked(name: str, parts: tuple[nn.Module, nn.Module]) -> None:
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        raise HeadError(
            f"head {name!r} is inside a traced or scripted model, which takes no hooks: pass the "
            "model that it was made from, or head='append' for a new linear layer after it."
        )


def _pooled_at(parts: tuple[nn.Module, nn.Module], value: Tensor) -> Tensor:
    """Return the input or output of a head; of maps [B, D, ...] their mean."""
    if value.ndim <= 2:
        return value
    conv = parts[0]
    alone = conv is parts[1] and is_pointwise(conv)
    return averaged(value) if alone and value.ndim == conv.weight.ndim else value


def _tensor(name: str, value: Any) -> Tensor:
    """Return the tensor that enters or leaves a head."""
    if not isinstance(value, Tensor):
        raise HeadError(f"head {name!r} is to map [B, D] to [B, Z]: it has {shown(value)}.")
    return value


def _forward(model: nn.Module, inputs: ModelInput) -> Tensor:
    try:
        output = call_model(model, inputs)
    except Exception as error:
        explain(model, inputs, error)
        raise
    usual = isinstance(output, Tensor) and output.ndim == 2 and output.is_floating_point()
    if not usual or output.layout != torch.strided or output.is_meta:
        return check_returned(output, one_item=is_one_item(inputs))
    return output
