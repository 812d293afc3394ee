"""The analytic Jacobian of chains of linear layers, and the choice of a backend for a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.errors import HeadError, UnknownNameError
from laplace_metric.heads._capture import PointwiseHead
from laplace_metric.heads._functional import FunctionalJacobian
from laplace_metric.heads._jacobian import HeadJacobian, LinearJacobian
from laplace_metric.heads._layers import (
    DenseFactor,
    Factor,
    GatedFactor,
    Layer,
    Layout,
    OrthogonalFactor,
)
from laplace_metric.heads._nnj import NnjJacobian

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
    linears : the L linear layers, in order
    activations : what stands between two of them (L - 1 groups of elementwise modules)

    Examples
    --------
    >>> head = ChainJacobian.of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> head.jacobian(torch.ones(5, 4)).shape
    torch.Size([5, 2, 58])
    """

    linears: tuple[LinearJacobian, ...]
    activations: tuple[Activation, ...]

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return whether ``module`` is such a chain, each layer used once, all trainable."""
        if not isinstance(module, nn.Sequential) or not len(module):
            return False
        parts = list(module)
        known = all(type(part) in (nn.Linear, *ELEMENTWISE) for part in parts)
        ends = type(parts[0]) is nn.Linear and type(parts[-1]) is nn.Linear
        return known and ends and len({id(part) for part in parts}) == len(parts)

    @classmethod
    def of(cls, module: nn.Sequential) -> ChainJacobian:
        """Read a sequential head that ``fits``; tensors are shared."""
        linears: list[LinearJacobian] = []
        groups: list[list[nn.Module]] = []
        for part in module:
            if isinstance(part, nn.Linear):
                linears.append(LinearJacobian.of(part))
                groups.append([])
            else:
                groups[-1].append(part)
        return cls(tuple(linears), tuple(tuple(group) for group in groups[:-1]))

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(linear.layout for linear in self.linears)

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        return self.linears[-1].n_outputs

    @property
    def parameters(self) -> Float[Tensor, " P"]:
        return torch.cat([linear.parameters for linear in self.linears])

    @property
    def layered(self) -> bool:
        return True

    @property
    def signature(self) -> str:
        return f"{type(self).__name__} {self.activations}"

    @property
    def dtype(self) -> torch.dtype:
        return self.linears[0].dtype

    def to(self, dtype: torch.dtype) -> ChainJacobian:
        return ChainJacobian(tuple(linear.to(dtype) for linear in self.linears), self.activations)

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
        """Input [B, D'] of every layer; slope phi'(s) [B, O] after every layer but the last."""
        inputs, slopes = [features], []
        for linear, group in zip(self.linears, self.activations, strict=False):
            value, slope = _activate_with_slope(linear.forward(inputs[-1]), group)
            inputs.append(value)
            slopes.append(slope)
        return inputs, slopes

    def jacobian(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z P"]:
        parts = [layer.jacobian(self.n_outputs) for layer in self.layers(features)]
        return torch.cat(parts, dim=-1)

    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        sizes = [layout.n_parameters for layout in self.layouts]
        first, *rest = parameters.split(sizes, dim=1)
        value = self.linears[0].forward_with(features, first)
        for group, linear, theta in zip(self.activations, self.linears[1:], rest, strict=True):
            matrix = linear.layout.fold(theta)  # [n, O, A]
            value = _augment(_activate(value, group), linear.layout) @ matrix.mT  # [n, B, O]
        return value


def _behind(factor: Factor, weight: Tensor, slope: Tensor) -> Factor:
    """``M_l = M_{l+1} W_{l+1} diag(phi'(s_l))``."""
    if isinstance(factor, OrthogonalFactor):
        return GatedFactor(weight, slope)
    return DenseFactor((factor.dense(0) @ weight) * slope[:, None, :])


def _augment(values: Tensor, layout: Layout) -> Tensor:
    ones = values.new_ones(*values.shape[:-1], int(layout.bias))
    return torch.cat([values, ones], dim=-1)


def _activate(values: Tensor, group: Sequence[nn.Module]) -> Tensor:
    for module in group:
        values = values if isinstance(module, nn.Dropout) else module(values.clone())
    return values


def _activate_with_slope(values: Tensor, group: Sequence[nn.Module]) -> tuple[Tensor, Tensor]:
    """phi(s) and phi'(s), both [B, O]."""
    with torch.enable_grad():
        s = values.detach().requires_grad_()
        out = _activate(s, group)
        (slope,) = torch.autograd.grad(out.sum(), s)
    return out.detach(), slope


# Which backend a head gets.


BACKENDS = ("auto", "analytic", "torch.func", "backpack", "nnj")


def check_backend(name: str) -> None:
    """The name must be one of ``BACKENDS``.

    Raises
    ------
    UnknownNameError
        If it is not.
    """
    if name not in BACKENDS:
        raise UnknownNameError("backend", name, BACKENDS)


def jacobian_of(module: nn.Module, n_outputs: int, backend: str = "auto") -> HeadJacobian:
    """The Jacobian of a head with Z outputs.

    Parameters
    ----------
    backend : "auto" | "analytic" | "torch.func" | "backpack" | "nnj"
        "auto": analytic where it exists (linear layers with elementwise activations between
        them), nnj for nnj's own modules, else torch.func.

    Raises
    ------
    HeadError
        If the backend cannot differentiate this head; the message names those that can.

    Examples
    --------
    >>> type(jacobian_of(nn.Linear(3, 2), 2)).__name__
    'LinearJacobian'
    """
    check_backend(backend)
    if backend == "auto":
        backend = _best(module)
    if backend == "analytic":
        return _analytic(module)
    if backend == "torch.func":
        return FunctionalJacobian(module, n_outputs)
    if backend == "nnj":
        return NnjJacobian.of(module, n_outputs)
    from laplace_metric.heads._backpack import BackpackJacobian

    return BackpackJacobian.of(module, n_outputs)


def _best(module: nn.Module) -> str:
    if is_linear(module) or ChainJacobian.fits(module):
        return "analytic"
    return "nnj" if NnjJacobian.fits(module) else "torch.func"


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear | PointwiseHead]:
    """``nn.Linear``, or nnj's, which computes the same; other subclasses may compute anything.

    So is a 1x1 convolution on mean features.
    """
    if isinstance(module, PointwiseHead):
        return True
    known = type(module).__module__.split(".")[0] in ("torch", "nnj")
    return isinstance(module, nn.Linear) and known


def _analytic(module: nn.Module) -> HeadJacobian:
    if is_linear(module):
        return LinearJacobian.of(module)
    if isinstance(module, nn.Sequential) and ChainJacobian.fits(module):
        return ChainJacobian.of(module)
    raise HeadError(
        f"backend='analytic' knows nn.Linear, and nn.Sequential of linear layers with elementwise "
        f"activations between them; this head is a {type(module).__name__}. Use "
        "backend='torch.func' (any head) or 'backpack'."
    )
