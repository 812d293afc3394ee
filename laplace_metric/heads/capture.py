"""A head inside a model, and one forward pass seen at it.

A model is read as ``x -> h -> z = g(h; theta) -> f``: ``h`` [B, D] enters the head, ``z`` [B, Z] is
the raw embedding, and the model's output ``f`` is either ``z`` itself or ``z / |z|`` (see
``normalization``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laplace_metric.batches import Inputs
from laplace_metric.errors import HeadError
from laplace_metric.evaluation_mode import evaluation_mode
from laplace_metric.full_precision import full_precision
from laplace_metric.heads.forward import Call, run_recorded


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
    """A head inside a model, and whether the model l2-normalises after it.

    Parameters
    ----------
    name : str
        Dotted name; "first..last" of modules in a row; "append" for a new one.
    module : nn.Module
        g, whose parameters get the posterior.
    parts : (module, module) or None
        Where h enters and z leaves inside the model; None for an appended head.
    """

    name: str
    module: nn.Module
    normalized: bool
    parts: tuple[nn.Module, nn.Module] | None


def capture(model: nn.Module, head: Head, inputs: Inputs) -> Captured:
    """One forward pass in eval mode; hooks and modes are put back before it returns."""
    with evaluation_mode(model):
        return run_captured(model, head, inputs)


def run_captured(model: nn.Module, head: Head, inputs: Inputs) -> Captured:
    """One forward pass in the model's present modes, with gradients where they are enabled."""
    if head.parts is None:
        h = run_recorded(model, inputs, {})[0].to(next(head.module.parameters()))
        with full_precision():
            z = head.module(h)
        return Captured(h, z, z)
    output, calls = run_recorded(model, inputs, {head.name: head.parts})
    return captured(calls, output, head.name)


def captured(calls: Sequence[Call], output: Tensor, name: str) -> Captured:
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
    return Captured(features, raw, output)
