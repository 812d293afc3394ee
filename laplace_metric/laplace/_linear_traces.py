"""Traces of the covariance of a linear head, in blocks that stay in a CPU's cache.

``C = Q_S diag(V x^2) Q_S^T`` for the input x seen in Q_A, V [Z, A] the posterior's variances. With
the diagonal structure ``Q_S = Q_A = I``. With K = N D Z multiplications, of one product
``[N, D] x [D, Z]``:

    raw, diagonal        tr C = x^2 . s                 s the column sums of V      K / Z
    raw, Kronecker       tr C = |L^T a|^2               L L^T = Q_A diag(s) Q_A^T   0.6 K D / Z
    sphere, diagonal     eigenvalues V x^2, and z       two products                2 K
    sphere, Kronecker    the same, with Q_S^T z and x = Q_A^T a                     (2 + D / Z) K

L is triangular, so of its columns only the part below the diagonal is multiplied.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._eigenbases import KroneckerEigenblock
from laplace_metric.distributions._round_chord import spectral_chord
from laplace_metric.heads._affine import Affine, pad
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.models._store import block_rows

CACHED_BYTES, OTHER_BYTES = 2**21, 2**26
"""Memory of a block of features: a core's own cache on the CPU, enough to fill a GPU elsewhere."""
STRIP = 128
"""Columns of L that are multiplied at once."""


class DiagonalTraces:
    """Traces of a linear head with the diagonal structure.

    A block has at most ``rows`` features h [n, D].

    Parameters
    ----------
    head : LinearJacobian
        Jacobian of the linear head, with its weights [W, b].
    variances : Tensor [Z, A]
        Posterior variance V of each entry of [W, b].
    """

    def __init__(self, head: LinearJacobian, variances: Tensor) -> None:
        self.head, layout = head, head.layout
        budget = CACHED_BYTES if variances.device.type == "cpu" else OTHER_BYTES
        self.rows = block_rows(layout.n_features, variances.element_size(), budget)
        self.outputs = Affine.of(layout.fold(head.parameters).mT, layout.n_features)
        self.variances = Affine.of(variances.mT, layout.n_features)
        self.sums = Affine.of(variances.sum(0)[:, None], layout.n_features)

    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        """Compute ``tr C`` [n]."""
        return self.sums(self.squared_inputs(h))[:, 0]

    def chord(self, h: Float[Tensor, "n D"], z: Float[Tensor, "n Z"] | None) -> Tensor:
        """Compute the expected squared distance of directions; z is the head's output if None."""
        variances = self.variances(self.squared_inputs(h))[:, : self.head.n_outputs]
        return spectral_chord(self.outputs(h) if z is None else self.seen(z), variances)

    def squared_inputs(self, h: Float[Tensor, "n D"]) -> Float[Tensor, "n A"]:
        """Return x^2 [n, D]."""
        return h.square()

    def seen(self, z: Tensor) -> Tensor:
        """Return Q_S^T z [n, Z]."""
        return z


class KroneckerTraces(DiagonalTraces):
    """Traces of a linear head with the Kronecker structure: inputs in Q_A, outputs in Q_S."""

    def __init__(self, head: LinearJacobian, block: KroneckerEigenblock, variances: Tensor) -> None:
        super().__init__(head, variances)
        size = head.layout.n_features
        self.block, self.inputs = block, Affine.of(block.right, size, padded=True)
        self.outputs = Affine.of(head.layout.fold(head.parameters).mT @ block.left, size)
        self.variances = Affine.of(pad(variances).mT, self.inputs.matrix.shape[1])
        self._sums = variances.sum(0)

    @cached_property
    def _strips(self) -> list[tuple[int, Affine]]:
        """Return (first row, L from there on) of every ``STRIP`` columns of the triangular L.

        Only the raw geometry needs them.
        """
        half = self.block.right.double() * self._sums.double().sqrt()  # any root of Q diag(s) Q^T
        root = torch.linalg.qr(half.mT, mode="r").R.mT.to(self._sums)  # made triangular
        n_features = len(self.inputs.matrix)
        return [
            (start, Affine.of(root[start:, start : start + STRIP], n_features - start))
            for start in range(0, len(root), STRIP)
        ]

    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        total = h.new_zeros(len(h))
        for start, strip in self._strips:
            total += strip(h[:, start:]).square_().sum(1)
        return total

    def squared_inputs(self, h: Float[Tensor, "n D"]) -> Float[Tensor, "n A"]:
        return self.inputs(h).square_()

    def seen(self, z: Tensor) -> Tensor:
        return z @ self.block.left
