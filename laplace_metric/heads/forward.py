"""One forward pass with its head recorded: hooks that are gone afterwards, errors that explain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from laplace_metric.batches import Inputs, call_model
from laplace_metric.errors import DtypeError, HeadError


@dataclass(frozen=True)
class Call:
    """One run of a head: what entered it and what left it."""

    name: str
    features: Tensor
    raw: Tensor


def run_recorded(
    model: nn.Module, inputs: Inputs, heads: Mapping[str, tuple[nn.Module, nn.Module]]
) -> tuple[Tensor, list[Call]]:
    """The model's output, and every run of ``heads``: name -> (where h enters, where z leaves)."""
    entered: dict[str, Tensor] = {}
    calls: list[Call] = []
    with _hooks(heads, entered, calls):
        output = _forward(model, inputs)
    return output, calls


@contextmanager
def _hooks(
    heads: Mapping[str, tuple[nn.Module, nn.Module]],
    entered: dict[str, Tensor],
    calls: list[Call],
) -> Iterator[None]:
    def enter(name: str) -> Any:
        def record(module: nn.Module, args: tuple[Any, ...]) -> None:
            # a linear layer leaves its input alone; a chain may start with an in-place activation
            entered[name] = args[0] if isinstance(module, nn.Linear) else args[0].clone()

        return record

    def leave(name: str) -> Any:
        def record(_module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
            calls.append(Call(name, entered[name], output.clone()))  # later steps may be in place

        return record

    handles = []
    for name, (first, last) in heads.items():
        handles.append(first.register_forward_pre_hook(enter(name)))
        handles.append(last.register_forward_hook(leave(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _forward(model: nn.Module, inputs: Inputs) -> Tensor:
    try:
        output = call_model(model, inputs)
    except RuntimeError as error:
        _explain_dtypes(model, inputs, error)
        raise
    if not isinstance(output, Tensor):
        raise HeadError(
            f"the model returned a {type(output).__name__}, not a tensor [B, Z]: wrap it in a "
            "module that returns the embedding only."
        )
    return output


def _explain_dtypes(model: nn.Module, inputs: Inputs, error: RuntimeError) -> None:
    """Raise ``DtypeError`` if a floating input has a dtype that no weight has."""
    weights = {p.dtype for p in model.parameters()}
    given = {x.dtype for x in _tensors(inputs) if x.is_floating_point()}
    if weights and not given <= weights:
        shown = [", ".join(sorted(map(str, kinds))) for kinds in (given, weights)]
        raise DtypeError(
            f"the forward pass failed: inputs are {shown[0]}, the model's weights {shown[1]}. Cast "
            "one of them, e.g. model.float() or inputs.to(torch.float32)."
        ) from error


def _tensors(inputs: Inputs) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, Mapping):
        yield from _tensors(list(inputs.values()))
    elif isinstance(inputs, (tuple, list)):
        for value in inputs:
            yield from _tensors(value)
