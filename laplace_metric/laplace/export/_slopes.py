"""Elementwise activations and their slopes in closed form, so that a graph needs no autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.errors import HeadError


def _gelu(module: Any, s: Tensor) -> Tensor:
    """``Phi(s) + s phi(s)``, or of its approximation ``s (1 + tanh g(s)) / 2``."""
    if module.approximate == "tanh":
        c, k = (2 / torch.pi) ** 0.5, 0.044715
        t = torch.tanh(c * (s + k * s * s * s))
        return 0.5 * (1 + t) + 0.5 * s * (1 - t * t) * c * (1 + 3 * k * s * s)
    density = (-0.5 * s * s).exp() / (2 * torch.pi) ** 0.5
    return 0.5 * (1 + torch.erf(s / 2**0.5)) + s * density


def _elu(module: Any, s: Tensor) -> Tensor:
    return torch.where(s > 0, torch.ones_like(s), module.alpha * s.clamp(max=0).exp())


def _leaky(module: Any, s: Tensor) -> Tensor:
    return torch.where(s > 0, torch.ones_like(s), module.negative_slope)


def _softplus(module: Any, s: Tensor) -> Tensor:
    linear = s * module.beta > module.threshold
    return torch.where(linear, torch.ones_like(s), torch.sigmoid(module.beta * s))


def _silu(_: Any, s: Tensor) -> Tensor:
    return torch.sigmoid(s) * (1 + s * (1 - torch.sigmoid(s)))


def _sigmoid(_: Any, s: Tensor) -> Tensor:
    return torch.sigmoid(s) * (1 - torch.sigmoid(s))


def _one(_: Any, s: Tensor) -> Tensor:
    return torch.ones_like(s)


SLOPES: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.ReLU: lambda _, s: (s > 0).to(s),
    nn.LeakyReLU: _leaky,
    nn.ELU: _elu,
    nn.GELU: _gelu,
    nn.SiLU: _silu,
    nn.Softplus: _softplus,
    nn.Tanh: lambda _, s: 1 - torch.tanh(s).square(),
    nn.Sigmoid: _sigmoid,
    nn.Identity: _one,
    nn.Dropout: _one,
}
"""phi'(s) of each activation that a chain of layers may have, in evaluation mode."""


def value_and_slope(
    group: Sequence[nn.Module], s: Float[Tensor, "B O"]
) -> tuple[Float[Tensor, "B O"], Float[Tensor, "B O"]]:
    """phi(s) and phi'(s) of activations one after the other (none: s and 1).

    Raises
    ------
    HeadError
        For an activation without a slope here.

    Examples
    --------
    >>> value_and_slope([nn.ReLU()], torch.tensor([[-1.0, 2.0]]))
    (tensor([[0., 2.]]), tensor([[0., 1.]]))
    """
    slope = torch.ones_like(s)
    for module in group:
        if type(module) not in SLOPES:
            raise HeadError(f"no graph knows the slope of a {type(module).__name__}.")
        slope = slope * SLOPES[type(module)](module, s)
        s = s if isinstance(module, nn.Dropout) else _fresh(module, s)
    return s, slope


def _fresh(module: nn.Module, s: Tensor) -> Tensor:
    """phi(s); what works in place is given a copy."""
    value: Tensor = module(s.clone() if getattr(module, "inplace", False) else s)
    return value
