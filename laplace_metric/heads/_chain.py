"""The Jacobian of linear layers with elementwise activations between them, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.heads._factors import DenseFactor, Factor, GatedFactor, OrthogonalFactor
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._layer import Layer
from laplace_metric.heads._layout import Layout
from laplace_metric.heads._linear import LinearJacobian

ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Softplus,
    nn.Tanh,
    nn.Sigmoid,
    nn.Identity,
    nn.Dropout,
)
"""Modules whose output's i-th entry depends on their input's i-th entry alone (in eval mode)."""
Activation = tuple[nn.Module, ...]


@dataclass(frozen=True)
class ChainJacobian(HeadJacobian):
    """``z = W_L phi(... phi(W_1 h + b_1) ...) + b_L``.

    Backwards from the last layer, ``M_L = I`` and ``M_l = M_{l+1} W_{l+1} diag(phi'(s_l))``.

    Parameters
    ----------
    linears : tuple of LinearJacobian
        The L linear layers, in the order in which they run.
    activations : tuple of tuples of modules
        The L - 1 groups of elementwise modules between two linear layers.

    Examples
    --------
    >>> head = ChainJacobian.of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> head.jacobian(torch.ones(5, 4)).shape
    torch.Size([5, 2, 58])
    """

    linears: tuple[LinearJacobian, ...]
    activations: tuple[Activation, ...]
    layered = True

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return whether ``module`` is such a chain, each layer used once."""
        if not isinstance(module, nn.Sequential) or not len(module):
            return False
        parts = list(module)
        known = all(type(part) in (nn.Linear, *ELEMENTWISE) for part in parts)
        ends = type(parts[0]) is nn.Linear and type(parts[-1]) is nn.Linear
        return known and ends and len({id(part) for part in parts}) == len(parts)

    @classmethod
    def of(cls, module: nn.Module) -> ChainJacobian:
        """Read a sequential head that ``fits``; tensors are shared."""
        linears: list[LinearJacobian] = []
        groups: list[list[nn.Module]] = []
        for part in module.children():
            if isinstance(part, nn.Linear):
                linears.append(LinearJacobian.of(part))
                groups.append([])
            else:
                groups[-1].append(part)
        return cls(tuple(linears), tuple(tuple(group) for group in groups[:-1]))

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(linear.layout for linear in self.linears)

    @cached_property
    def n_outputs(self) -> int:  # type: ignore[override]
        return self.linears[-1].n_outputs

    @property
    def parameters(self) -> Float[Tensor, " P"]:
        return torch.cat([linear.parameters for linear in self.linears])

    @property
    def signature(self) -> str:
        return f"{type(self).__name__} {self.activations}"

    @property
    def dtype(self) -> torch.dtype:
        return self.linears[0].dtype

    def to(self, dtype: torch.dtype) -> ChainJacobian:
        return ChainJacobian(tuple(linear.to(dtype) for linear in self.linears), self.activations)

    def owned(self) -> ChainJacobian:
        return replace(self, linears=tuple(_copied(linear) for linear in self.linears))

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        for linear, group in zip(self.linears, (*self.activations, ()), strict=True):
            features = _activate(linear.forward(features), group)
        return features

    def layers(self, features: Float[Tensor, "B D"]) -> list[Layer]:
        inputs, slopes = self._inputs_and_slopes(features)
        factors: list[Factor] = [OrthogonalFactor()]
        for linear, slope in zip(self.linears[:0:-1], slopes[::-1], strict=True):
            factors.append(_behind(factors[-1], linear.weight, slope))
        parts = zip(inputs, factors[::-1], self.layouts, strict=True)
        return [Layer(layout.augment(h), factor, layout) for h, factor, layout in parts]

    def _inputs_and_slopes(self, features: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the input [B, D'] of every layer, and phi'(s) [B, O] after all but the last."""
        inputs, slopes = [features], []
        for linear, group in zip(self.linears, self.activations, strict=False):
            value, slope = _activate_with_slope(linear.forward(inputs[-1]), group)
            inputs.append(value)
            slopes.append(slope)
        return inputs, slopes

    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        sizes = [layout.n_parameters for layout in self.layouts]
        first, *rest = parameters.split(sizes, dim=1)
        value = self.linears[0].forward_with(features, first)
        for group, linear, theta in zip(self.activations, self.linears[1:], rest, strict=True):
            matrix = linear.layout.fold(theta)  # [n, O, A]
            value = linear.layout.augment(_activate(value, group)) @ matrix.mT  # [n, B, O]
        return value


def _copied(linear: LinearJacobian) -> LinearJacobian:
    bias = None if linear.bias is None else linear.bias.clone()
    return replace(linear, weight=linear.weight.clone(), bias=bias)


def _behind(factor: Factor, weight: Tensor, slope: Tensor) -> Factor:
    """Return ``M_l = M_{l+1} W_{l+1} diag(phi'(s_l))``."""
    if isinstance(factor, OrthogonalFactor):
        return GatedFactor(weight, slope)
    return DenseFactor((factor.dense(0) @ weight) * slope[:, None, :])


def _activate(values: Tensor, group: Sequence[nn.Module]) -> Tensor:
    for module in group:
        values = values if isinstance(module, nn.Dropout) else module(values.clone())
    return values


def _activate_with_slope(values: Tensor, group: Sequence[nn.Module]) -> tuple[Tensor, Tensor]:
    """Return phi(s) and phi'(s), both [B, O]."""
    with torch.enable_grad():
        s = values.detach().requires_grad_()
        out = _activate(s, group)
        (slope,) = torch.autograd.grad(out.sum(), s)
    return out.detach(), slope
