"""The Jacobian of one linear layer at n points: Kronecker products ``J_i = M_i (x) a_i^T``."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from laplace_metric.heads._factors import Factor
from laplace_metric.heads._layout import Layout


@dataclass(frozen=True)
class Layer:
    """``J_i = M_i (x) a_i^T`` for n points: ``inputs`` a [n, A], ``factor`` M, and its layout."""

    inputs: Float[Tensor, "n A"]
    factor: Factor
    layout: Layout

    def divided(self, lengths: Float[Tensor, "n 1"]) -> Layer:
        """Return ``J_i / r_i`` for lengths r."""
        return Layer(self.inputs / lengths, self.factor, self.layout)

    def rotated(self, left: Float[Tensor, "O O"], right: Float[Tensor, "A A"]) -> Layer:
        """Return ``J_i (Q_S (x) Q_A)`` for Q_S left and Q_A right."""
        return Layer(self.inputs @ right, self.factor.rotated(left), self.layout)

    def vjp(self, cotangents: Float[Tensor, "n R Z"]) -> Float[Tensor, "R P"]:
        """Return ``sum_i V_i J_i``: one product [R O, n] x [n, A]."""
        rows = self.factor.after(cotangents)  # [n, R, O]
        matrices = (rows.flatten(1).mT @ self.inputs).unflatten(0, rows.shape[1:])  # [R, O, A]
        return self.layout.flatten(matrices)

    def diagonal(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, " P"]:
        """Return ``diag(sum_i J_i^T B_i J_i)`` for symmetric B: one product [O, n] x [n, A]."""
        rows = self.factor.quadratic(blocks)  # [n, O]
        return self.layout.flatten(rows.mT @ self.inputs.square())

    def jacobian(self, n_outputs: int) -> Float[Tensor, "n Z P"]:
        """Return J written out, columns in parameter order."""
        m = self.factor.dense(n_outputs).to(self.inputs)
        return self.layout.flatten(m[..., None] * self.inputs[:, None, None, :])  # [n, Z, O, A]
