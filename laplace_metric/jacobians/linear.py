"""The analytic Jacobian of a linear head, with and without bias."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laplace_metric.jacobians.factors import OrthogonalFactor
from laplace_metric.jacobians.layers import Layer
from laplace_metric.jacobians.precision import at_least_float32
from laplace_metric.jacobians.protocol import HeadJacobian
from laplace_metric.layout import Layout


@dataclass(frozen=True)
class LinearJacobian(HeadJacobian):
    """``z = W h + b``: ``J_i = I_Z (x) [h_i; 1]^T``, with theta = (W row-major, b).

    Parameters
    ----------
    weight : Tensor [Z, D]
    bias : Tensor [Z] or None

    Examples
    --------
    >>> head = LinearJacobian.of(nn.Linear(3, 2))
    >>> head.jacobian(torch.ones(5, 3)).shape
    torch.Size([5, 2, 8])
    """

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, module: nn.Linear) -> LinearJacobian:
        """Read an ``nn.Linear``; tensors are shared (half precision becomes a float32 copy)."""
        bias = None if module.bias is None else at_least_float32(module.bias.detach())
        return cls(at_least_float32(module.weight.detach()), bias)

    @property
    def layout(self) -> Layout:
        """Of [W, b]."""
        n_outputs, n_features = self.weight.shape
        return Layout(n_outputs, n_features, bias=self.bias is not None)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return (self.layout,)

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        return len(self.weight)

    @property
    def parameters(self) -> Tensor:
        parts = [self.weight.flatten()] + ([] if self.bias is None else [self.bias])
        return torch.cat(parts)

    def raw(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)

    def layers(self, features: Tensor) -> list[Layer]:
        return [Layer(self.layout.augment(features), OrthogonalFactor(), self.layout)]

    @property
    def layered(self) -> bool:
        return True

    def jacobian(self, features: Tensor) -> Tensor:
        return self.layers(features)[0].jacobian(self.n_outputs)

    def perturbed(self, features: Tensor, parameters: Tensor) -> Tensor:
        """One product [B, D] x [D, n Z]."""
        size = self.weight.numel()
        weight = parameters[:, :size].unflatten(-1, self.weight.shape)
        z = features @ weight.flatten(0, 1).mT  # [B, n Z]
        z = z.unflatten(1, weight.shape[:2]).transpose(0, 1)  # [n, B, Z]
        return z if self.bias is None else z + parameters[:, None, size:]
