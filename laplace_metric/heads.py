"""The head of an embedder: find it, see what follows it, capture its input and output.

A model is read as ``x -> h -> z = W h + b -> f``: ``h`` [B, D] enters the head, ``z`` [B, Z] is the
raw embedding, and the model's output ``f`` is either ``z`` itself or ``z / |z|`` (see
``normalization``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.batches import Inputs, call_model
from laplace_metric.errors import DtypeError, HeadError, InputError
from laplace_metric.normalization import is_normalized


@dataclass(frozen=True)
class Captured:
    """One forward pass seen at the head: ``features`` h [B, D], ``raw`` z [B, Z], ``output`` f."""

    features: Tensor
    raw: Tensor
    output: Tensor

    @classmethod
    def concatenate(cls, parts: Sequence[Captured]) -> Captured:
        """One pass out of several."""
        names = ("features", "raw", "output")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class Head:
    """A linear head inside a model, and whether the model l2-normalises after it."""

    name: str
    module: nn.Linear
    normalized: bool


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; each sub-module's own mode is put back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def find_head(model: nn.Module, inputs: Inputs, head: nn.Module | str | None = None) -> Head:
    """Find the linear head and what follows it, by one forward pass on ``inputs``.

    Parameters
    ----------
    head : module, dotted name or None
        None takes the last ``nn.Linear`` that runs.

    Raises
    ------
    HeadError
        If there is no such linear layer, or the output is neither ``z`` nor ``z / |z|``.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> find_head(model, torch.ones(3, 4)).name
    '2'
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: pass a torch.nn.Module.")
    candidates = _linear_candidates(model, head)
    calls: list[tuple[str, Tensor, Tensor]] = []
    with evaluation_mode(model), _hooks(candidates, calls):
        output = _forward(model, inputs)
    if not calls:
        raise HeadError(f"none of the linear layers {sorted(candidates)} ran in the forward pass.")
    name = calls[-1][0]
    captured = _captured([call for call in calls if call[0] == name], output, name)
    return Head(name, candidates[name], is_normalized(captured.raw, captured.output, name))


def capture(model: nn.Module, head: Head, inputs: Inputs) -> Captured:
    """One forward pass in eval mode; hooks and modes are put back before it returns."""
    calls: list[tuple[str, Tensor, Tensor]] = []
    with evaluation_mode(model), _hooks({head.name: head.module}, calls):
        output = _forward(model, inputs)
    return _captured(calls, output, head.name)


def _linear_candidates(model: nn.Module, head: nn.Module | str | None) -> dict[str, nn.Linear]:
    modules = dict(model.named_modules())
    linears = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
    if head is None:
        if not linears:
            raise HeadError(
                f"{type(model).__name__} has no nn.Linear, so there is no head to put a posterior "
                "on: end the model with a linear layer."
            )
        return linears
    if isinstance(head, str):
        chosen = {name: module for name, module in linears.items() if name == head}
    else:
        chosen = {name: module for name, module in linears.items() if module is head}
    if not chosen:
        shown = head if isinstance(head, str) else type(head).__name__
        raise HeadError(f"head={shown!r} is not a linear layer of the model: {sorted(linears)}.")
    return chosen


@contextmanager
def _hooks(
    modules: dict[str, nn.Linear], calls: list[tuple[str, Tensor, Tensor]]
) -> Iterator[None]:
    def recorder(name: str) -> Any:
        def record(_module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            calls.append((name, args[0], output.clone()))  # what follows may work in place

        return record

    handles = [module.register_forward_hook(recorder(name)) for name, module in modules.items()]
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


def _captured(calls: list[tuple[str, Tensor, Tensor]], output: Tensor, name: str) -> Captured:
    if len(calls) != 1:
        raise HeadError(f"head {name!r} ran {len(calls)} times in one forward pass, not once.")
    _, features, raw = calls[0]
    if features.ndim != 2 or raw.shape != output.shape:
        raise HeadError(
            f"head {name!r} maps {tuple(features.shape)} to {tuple(raw.shape)} and the model "
            f"returns {tuple(output.shape)}: the head must map [B, D] to the returned [B, Z]. "
            "Name another layer with head=..., or end the model with a linear layer."
        )
    return Captured(features, raw, output)
