"""A head ``z = g(h; theta)`` and its Jacobian: the interface that all backends share.

A head of linear layers with elementwise activations between them has a Jacobian of Kronecker
products, one a layer: ``J_i = M_i (x) a_i^T``, with ``a_i`` [A] the layer's input (with a 1 for its
bias) and ``M_i = dz_i/ds_i`` [Z, O] from the output s of the layer to the head's z, a ``Factor``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.blocks import LARGE_BYTES, blocks
from laplace_metric.heads._layer import Layer
from laplace_metric.heads._layout import Layout

JACOBIAN_BYTES = LARGE_BYTES
"""Memory of the largest J [b, Z, P] that is written out at once."""


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
    layered = False
    """True if ``layers`` gives an answer."""
    linear = False
    """True if ``z = W h + b``, with theta = [W, b] of one layout: linear in h and in theta."""

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
        """Return the same head in another dtype: itself if it has that dtype, else a copy."""

    def owned(self) -> HeadJacobian:
        """Return the same head, whose Jacobian reads no tensor that others may write to.

        Itself where the Jacobian depends on no weights, as of one linear layer.
        """
        return self

    @abstractmethod
    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        """Return raw embeddings z of the features h."""

    def jacobian(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z P"]:
        """Return J written out."""
        parts = [layer.jacobian(self.n_outputs) for layer in self.layers(features)]
        return torch.cat(parts, dim=-1)

    @abstractmethod
    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        """Return z under n parameter vectors, each shared by all inputs."""

    @property
    def signature(self) -> str:
        """Function of the head, apart from its tensors; part of fingerprints."""
        return type(self).__name__

    @property
    def constants(self) -> list[Tensor]:
        """Tensors that it depends on, in addition to the parameters."""
        return []

    def layers(self, features: Float[Tensor, "B D"]) -> list[Layer]:
        """Return J as Kronecker products, one a linear layer; none without that structure."""
        return []

    @property
    def n_parameters(self) -> int:
        """P."""
        return sum(layout.n_parameters for layout in self.layouts)

    def jacobians(self, features: Float[Tensor, "B D"]) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of the rows, each with its J [b, Z, P] within ``JACOBIAN_BYTES``."""
        row_bytes = 8 * self.n_outputs * self.n_parameters
        for part in blocks(len(features), row_bytes, JACOBIAN_BYTES):
            yield part, self.jacobian(features[part])

    def diagonal(
        self, features: Float[Tensor, "B D"], blocks: Float[Tensor, "B Z Z"]
    ) -> Float[Tensor, " P"]:
        """Return ``diag(sum_i J_i^T B_i J_i)`` in float64, for symmetric B_i of any sign."""
        if layers := self.layers(features):
            return torch.cat([layer.diagonal(blocks) for layer in layers]).double()
        total = torch.zeros(self.n_parameters, dtype=torch.float64, device=features.device)
        for part, j in self.jacobians(features):
            total += (j * (blocks[part] @ j)).sum((0, 1)).double()  # [b, Z, P] -> [P]
        return total

    def vjp(
        self, features: Float[Tensor, "B D"], cotangents: Float[Tensor, "B R Z"]
    ) -> Float[Tensor, "R P"]:
        """Return vector-Jacobian products ``sum_i V_i J_i`` in float64, for cotangents V."""
        if layers := self.layers(features):
            return torch.cat([layer.vjp(cotangents) for layer in layers], dim=1).double()
        size = (cotangents.shape[1], self.n_parameters)
        total = torch.zeros(size, dtype=torch.float64, device=features.device)
        for part, j in self.jacobians(features):
            total += torch.einsum("brz,bzp->rp", cotangents[part], j).double()
        return total
