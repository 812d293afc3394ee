"""The Jacobian of one linear layer as a head, in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.heads._factors import OrthogonalFactor
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._layer import Layer
from laplace_metric.heads._layout import Layout
from laplace_metric.heads._pointwise import PointwiseHead


@dataclass(frozen=True)
class LinearJacobian(HeadJacobian):
    """``z = W h + b``: ``J_i = I_Z (x) [h_i; 1]^T``, with theta = (W row-major, b).

    Parameters
    ----------
    weight : Tensor [Z, D]
        Weights W of the layer.
    bias : Tensor [Z] or None
        Bias b of the layer. None, the default: a layer without one.
    identity : bool
        True if z is h, as of an appended head whose weights do not change while this is used; it
        saves a product. Default: False.

    Examples
    --------
    >>> head = LinearJacobian.of(nn.Linear(3, 2))
    >>> head.jacobian(torch.ones(5, 3)).shape
    torch.Size([5, 2, 8])
    """

    weight: Float[Tensor, "Z D"]
    bias: Float[Tensor, " Z"] | None = None
    identity: bool = False
    layered = True
    linear = True

    @classmethod
    def of(cls, module: nn.Linear | PointwiseHead) -> LinearJacobian:
        """Read a linear layer; tensors are shared (half precision becomes a float32 copy)."""
        bias = None if module.bias is None else at_least_float32(module.bias.detach())
        return cls(at_least_float32(module.weight.detach()), bias)

    @cached_property
    def layout(self) -> Layout:
        """Layout of [W, b]."""
        n_outputs, n_features = self.weight.shape
        return Layout(n_outputs, n_features, bias=self.bias is not None)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        return (self.layout,)

    @cached_property
    def n_outputs(self) -> int:  # type: ignore[override]
        return len(self.weight)

    @property
    def parameters(self) -> Float[Tensor, " P"]:
        parts = [self.weight.flatten()] + ([] if self.bias is None else [self.bias])
        return torch.cat(parts)

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def to(self, dtype: torch.dtype) -> LinearJacobian:
        bias = None if self.bias is None else self.bias.to(dtype)
        return (
            self if dtype == self.dtype else replace(self, weight=self.weight.to(dtype), bias=bias)
        )

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        if self.identity:
            return features
        return nn.functional.linear(features, self.weight, self.bias)

    def layers(self, features: Float[Tensor, "B D"]) -> list[Layer]:
        return [Layer(self.layout.augment(features), OrthogonalFactor(), self.layout)]

    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        """Return z under n parameter vectors, by one product [B, D] x [D, n Z]."""
        size = self.weight.numel()
        weight = parameters[:, :size].unflatten(-1, self.weight.shape)  # [n, Z, D]
        z = features @ weight.flatten(0, 1).mT  # [B, n Z]
        z = z.unflatten(1, weight.shape[:2]).transpose(0, 1)  # [n, B, Z]
        return z if self.bias is None else z + parameters[:, None, size:]
