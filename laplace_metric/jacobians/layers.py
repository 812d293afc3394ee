"""The Jacobian of a linear layer inside a head: ``J_i = M_i (x) a_i^T``.

``a_i`` [A] is the layer's input (with a 1 for its bias), ``M_i`` [Z, O] a ``Factor``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from laplace_metric.jacobians.factors import Factor
from laplace_metric.layout import Layout


@dataclass(frozen=True)
class Layer:
    """``J_i = M_i (x) a_i^T`` for n points: ``inputs`` a [n, A], ``factor`` M, and its layout."""

    inputs: Tensor
    factor: Factor
    layout: Layout

    def divided(self, lengths: Tensor) -> Layer:
        """``J_i / r_i`` for r [n, 1]."""
        return Layer(self.inputs / lengths, self.factor, self.layout)

    def rotated(self, left: Tensor, right: Tensor) -> Layer:
        """``J_i (Q_S (x) Q_A)``."""
        return Layer(self.inputs @ right, self.factor.rotated(left), self.layout)

    def pull_back(self, cotangents: Tensor) -> Tensor:
        """``sum_i V_i J_i`` [R, P] for V [n, R, Z]: one product [R O, n] x [n, A]."""
        rows = self.factor.after(cotangents)  # [n, R, O]
        return self.layout.flatten((rows.flatten(1).mT @ self.inputs).unflatten(0, rows.shape[1:]))

    def diagonal(self, blocks: Tensor) -> Tensor:
        """``diag(sum_i J_i^T B_i J_i)`` [P], symmetric B [n, Z, Z]: one product [O, n] x [n, A]."""
        rows = self.factor.quadratic(blocks)
        return self.layout.flatten(rows.mT @ self.inputs.square())

    def jacobian(self, n_outputs: int) -> Tensor:
        """J [n, Z, P], materialised, columns in parameter order."""
        m = self.factor.dense(n_outputs).to(self.inputs)
        return self.layout.flatten(m[..., None] * self.inputs[:, None, None, :])
