"""What every Jacobian backend provides."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class HeadJacobian(Protocol):
    """A head ``z = g(h; theta)`` seen through its Jacobian ``J = dz/dtheta`` [Z, P].

    ``theta`` has the order of ``torch.nn.utils.parameters_to_vector(head.parameters())``.
    """

    @property
    def n_parameters(self) -> int:
        """P."""

    @property
    def parameters(self) -> Tensor:
        """theta [P], a copy."""

    def raw(self, features: Tensor) -> Tensor:
        """z [B, Z] of the features h [B, D]."""

    def jacobian(self, features: Tensor) -> Tensor:
        """J [B, Z, P], materialised: for small heads, oracles and debugging."""

    def variance(self, features: Tensor, parameter_variance: Tensor) -> Tensor:
        """diag(J S J^T) [B, Z] for a diagonal S given as a vector [P]."""

    def perturbed(self, features: Tensor, parameters: Tensor) -> Tensor:
        """z [n, B, Z] under n parameter vectors [n, P], each shared by all inputs."""
