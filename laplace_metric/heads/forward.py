"""One forward pass with its head recorded: hooks that are gone afterwards, errors that explain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from laplace_metric.batches import Inputs, call_model
from laplace_metric.heads.refused import explain
from laplace_metric.heads.returned import check_returned


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
    except Exception as error:
        explain(model, inputs, error)
        raise
    return check_returned(output)
