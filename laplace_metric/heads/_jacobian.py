"""Interface of the Jacobian backends, and the analytic Jacobian of a linear head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.heads._capture import PointwiseHead
from laplace_metric.heads._layers import Layer, Layout, OrthogonalFactor

JACOBIAN_BYTES = 64 * 2**20
"""Largest [b, Z, P] array that is materialised at once."""


class HeadJacobian(ABC):
    """A head ``z = g(h; theta)`` and its Jacobian ``J_i = dz_i/dtheta`` [Z, P].

    ``theta`` has the order of ``torch.nn.utils.parameters_to_vector(head.parameters())``.
    """

    @property
    @abstractmethod
    def layouts(self) -> tuple[Layout, ...]:
        """Layout of each linear layer in parameter order; one ``Layout(1, P)`` for other heads."""

    n_outputs: int
    """Z."""

    @property
    @abstractmethod
    def parameters(self) -> Float[Tensor, " P"]:
        """theta, a copy."""

    @property
    def dtype(self) -> torch.dtype:
        """dtype of theta."""
        return self.parameters.dtype

    @abstractmethod
    def to(self, dtype: torch.dtype) -> HeadJacobian:
        """The same head in another type: itself where it has that type, else a copy."""

    @abstractmethod
    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        """Raw embeddings z of the features h."""

    @abstractmethod
    def jacobian(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z P"]:
        """J, materialised."""

    @abstractmethod
    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        """z under n parameter vectors, each shared by all inputs."""

    @property
    def signature(self) -> str:
        """Function of the head, apart from its tensors; part of fingerprints."""
        return type(self).__name__

    @property
    def constants(self) -> list[Tensor]:
        """Tensors that it depends on, in addition to the parameters."""
        return []

    def layers(self, features: Float[Tensor, "B D"]) -> list[Layer] | None:
        """J as Kronecker products, one a linear layer; None for heads without that structure."""
        return None

    @property
    def layered(self) -> bool:
        """True if ``layers`` gives an answer."""
        return False

    @property
    def n_parameters(self) -> int:
        """P."""
        return sum(layout.n_parameters for layout in self.layouts)

    def jacobians(self, features: Float[Tensor, "B D"]) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the rows, each with its J [b, Z, P] within ``JACOBIAN_BYTES``."""
        size = 8 * self.n_outputs * self.n_parameters
        step = max(1, JACOBIAN_BYTES // size)
        for start in range(0, len(features), step):
            part = slice(start, min(start + step, len(features)))
            yield part, self.jacobian(features[part])

    def diagonal(
        self, features: Float[Tensor, "B D"], blocks: Float[Tensor, "B Z Z"]
    ) -> Float[Tensor, " P"]:
        """``diag(sum_i J_i^T B_i J_i)`` in float64, for symmetric B_i of any sign."""
        if (layers := self.layers(features)) is not None:
            return torch.cat([layer.diagonal(blocks) for layer in layers]).double()
        total = torch.zeros(self.n_parameters, dtype=torch.float64, device=features.device)
        for part, j in self.jacobians(features):
            total += (j * (blocks[part] @ j)).sum((0, 1)).double()  # [b, Z, P] -> [P]
        return total

    def vjp(
        self, features: Float[Tensor, "B D"], cotangents: Float[Tensor, "B R Z"]
    ) -> Float[Tensor, "R P"]:
        """Vector-Jacobian products ``sum_i V_i J_i`` in float64, for cotangents V."""
        if (layers := self.layers(features)) is not None:
            return torch.cat([layer.vjp(cotangents) for layer in layers], dim=1).double()
        size = (cotangents.shape[1], self.n_parameters)
        total = torch.zeros(size, dtype=torch.float64, device=features.device)
        for part, j in self.jacobians(features):
            total += torch.einsum("brz,bzp->rp", cotangents[part], j).double()
        return total


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

    weight: Float[Tensor, "Z D"]
    bias: Float[Tensor, " Z"] | None = None

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

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return (self.layout,)

    @property
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
        return self if dtype == self.dtype else LinearJacobian(self.weight.to(dtype), bias)

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        return nn.functional.linear(features, self.weight, self.bias)

    def layers(self, features: Float[Tensor, "B D"]) -> list[Layer]:
        return [Layer(self.layout.augment(features), OrthogonalFactor(), self.layout)]

    @property
    def layered(self) -> bool:
        return True

    def jacobian(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z P"]:
        return self.layers(features)[0].jacobian(self.n_outputs)

    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        """One product [B, D] x [D, n Z]."""
        size = self.weight.numel()
        weight = parameters[:, :size].unflatten(-1, self.weight.shape)  # [n, Z, D]
        z = features @ weight.flatten(0, 1).mT  # [B, n Z]
        z = z.unflatten(1, weight.shape[:2]).transpose(0, 1)  # [n, B, Z]
        return z if self.bias is None else z + parameters[:, None, size:]
