"""What one point contributes to the Hessian at z: ``T_i = alpha_i I + u_i v_i^T + v_i u_i^T``.

Identity plus rank two covers both distances (see ``geometry``), so every product with T is a few
matrix products, and the [n, Z, Z] array is written out only for Jacobians without structure.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PointBlocks:
    """T_i of n points; K = Z on the sphere, and K = 1 with u = 0 in the raw geometry.

    Parameters
    ----------
    alpha : Tensor [n]
    u, v : Tensor [n, K]

    Examples
    --------
    >>> t = PointBlocks(torch.ones(1), torch.tensor([[1.0, 0.0]]), torch.tensor([[-0.5, 0.0]]))
    >>> t.dense(2)
    tensor([[[0., 0.],
             [0., 1.]]])
    """

    alpha: Tensor
    u: Tensor
    v: Tensor

    def dense(self, n_outputs: int) -> Tensor:
        """T [n, Z, Z]."""
        u, v = (x.expand(-1, n_outputs) for x in (self.u, self.v))
        outer = u[:, :, None] * v[:, None, :]
        identity = torch.eye(n_outputs, dtype=u.dtype, device=u.device)
        return self.alpha[:, None, None] * identity + outer + outer.mT
