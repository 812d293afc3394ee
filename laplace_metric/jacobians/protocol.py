"""What every Jacobian backend provides, and what follows from the Jacobian alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from laplace_metric.jacobians.layers import Layer
from laplace_metric.layout import Layout

JACOBIAN_BYTES = 64 * 2**20
"""Largest [b, Z, P] array that is materialised at once."""


class HeadJacobian(ABC):
    """A head ``z = g(h; theta)`` seen through its Jacobian ``J_i = dz_i/dtheta`` [Z, P].

    ``theta`` has the order of ``torch.nn.utils.parameters_to_vector(head.parameters())``.
    """

    @property
    @abstractmethod
    def layouts(self) -> tuple[Layout, ...]:
        """Of each linear layer in parameter order; one ``Layout(1, P)`` for other heads."""

    n_outputs: int
    """Z."""

    @property
    @abstractmethod
    def parameters(self) -> Tensor:
        """theta [P], a copy."""

    @abstractmethod
    def raw(self, features: Tensor) -> Tensor:
        """z [B, Z] of the features h [B, D]."""

    @abstractmethod
    def jacobian(self, features: Tensor) -> Tensor:
        """J [B, Z, P], materialised."""

    @abstractmethod
    def perturbed(self, features: Tensor, parameters: Tensor) -> Tensor:
        """z [n, B, Z] under n parameter vectors [n, P], each shared by all inputs."""

    @property
    def words(self) -> str:
        """What the head computes, apart from its tensors."""
        return type(self).__name__

    @property
    def constants(self) -> list[Tensor]:
        """Tensors beside the parameters that it depends on."""
        return []

    def layers(self, features: Tensor) -> list[Layer] | None:
        """J as Kronecker products, one a linear layer; None for heads without that structure."""
        return None

    @property
    def layered(self) -> bool:
        """Whether ``layers`` gives an answer."""
        return False

    @property
    def n_parameters(self) -> int:
        """P."""
        return sum(layout.n_parameters for layout in self.layouts)

    def jacobians(self, features: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """(rows, J of those rows) within ``JACOBIAN_BYTES``."""
        size = 8 * self.n_outputs * self.n_parameters
        step = max(1, JACOBIAN_BYTES // size)
        for start in range(0, len(features), step):
            part = slice(start, min(start + step, len(features)))
            yield part, self.jacobian(features[part])

    def diagonal(self, features: Tensor, blocks: Tensor) -> Tensor:
        """``diag(sum_i J_i^T B_i J_i)`` [P] float64 for symmetric B [B, Z, Z] of any sign."""
        if (layers := self.layers(features)) is not None:
            return torch.cat([layer.diagonal(blocks) for layer in layers]).double()
        total = torch.zeros(self.n_parameters, dtype=torch.float64, device=features.device)
        for part, j in self.jacobians(features):
            total += (j * (blocks[part] @ j)).sum((0, 1)).double()
        return total

    def pull_back(self, features: Tensor, cotangents: Tensor) -> Tensor:
        """``sum_i V_i J_i`` [R, P] float64 for V [B, R, Z]."""
        if (layers := self.layers(features)) is not None:
            return torch.cat([layer.pull_back(cotangents) for layer in layers], dim=1).double()
        size = (cotangents.shape[1], self.n_parameters)
        total = torch.zeros(size, dtype=torch.float64, device=features.device)
        for part, j in self.jacobians(features):
            total += torch.einsum("brz,bzp->rp", cotangents[part], j).double()
        return total
