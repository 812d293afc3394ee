"""The Gauss-Newton curvature of the pairwise sigmoid loss over all pairs, of one projection.

With ``mu_i = z_i / r_i``, ``z_i = W h_i`` on this side, ``t_j`` the unit means of the other side,
``c_ij = mu_i . t_j`` and the logit ``f_ij = a (c_ij - (tr S_i + tr S_j) / 2) + b``, the loss of a
pair, ``-log sigmoid(y f)``, has the second derivative ``p (1 - p)`` in f, whatever y, and

    df_ij / dW = a / r_i (P_i t_j) h_i^T,    P_i = I - mu_i mu_i^T
    H = 1/(N M) sum_ij p_ij (1 - p_ij) (df_ij / dW) (df_ij / dW)^T = sum_i G_i (x) h_i h_i^T
    G_i = P_i (sum_j w_ij t_j t_j^T) P_i,    w_ij = a^2 p_ij (1 - p_ij) / (r_i^2 N M)

so that N M pairs are N outer products. No G_i is formed either: with ``u_i = sum_j w_ij c_ij t_j``
and ``k_i = sum_j w_ij c_ij^2``

    sum_i q_i G_i            = T^T diag(q w) T - X^T diag(q) U - U^T diag(q) X + X^T diag(q k) X
    <S, G_i>                 = sum_j w_ij t_j^T S t_j - 2 mu_i^T S u_i + k_i mu_i^T S mu_i
    diag(G_i)                = sum_j w_ij t_j^2 - 2 mu_i u_i + k_i mu_i^2

products of [N, M] with [M, D] matrices: O(N M D) time, O(rows M) memory. In a rotated space G_i is
that of the rotated means. As elsewhere (``curvature``), the structure is the nearest Kronecker
product ``S (x) A`` with the exact diagonal of H in its eigenbasis. The two projections are taken as
independent: their cross block is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.blocks import blocks
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.curvature._structures import KronCurvature, KroneckerFactors, balanced
from laplace_metric.heads._layout import Layout

MAX_STEPS = 30
TOLERANCE = 1e-3
"""Stop when |S (x) A| grows by no more than this share."""
WEIGHT_BYTES = 2**25
"""Memory of the weights of pairs that are held at once, in float64."""


@dataclass(frozen=True)
class TowerPairs:
    """All pairs of N inputs of one side with M of the other, in float64.

    Parameters
    ----------
    inputs : Tensor [N, A]
        Inputs h of the projection, with a 1 for its bias.
    raw : Tensor [N, D]
        Means z before they are divided by their length.
    trace : Tensor [N]
        Traces tr S of the variances of this side.
    other : Tensor [M, D]
        Unit means of the other side.
    other_trace : Tensor [M]
        Traces of the variances of the other side.
    a, b : float
        Scale and offset of the logit.
    """

    inputs: Tensor
    raw: Tensor
    trace: Tensor
    other: Tensor
    other_trace: Tensor
    a: float
    b: float

    def rotated(self, left: Float[Tensor, "D D"], right: Float[Tensor, "A A"]) -> TowerPairs:
        """Return the pairs, seen in Q_S over outputs and Q_A over inputs."""
        h, z, t = self.inputs @ right, self.raw @ left, self.other @ left
        return replace(self, inputs=h, raw=z, other=t)

    def left_contraction(self, right: Float[Tensor, "A A"]) -> Float[Tensor, "D D"]:
        """Return ``<H, A>``: ``sum_i (h_i^T A h_i) G_i``."""
        total = self.raw.new_zeros(2 * (self.raw.shape[1],))
        for h, mu, w, u, k in self._blocks():
            q = ((h @ right) * h).sum(1)
            cross = (q[:, None] * mu).mT @ u
            total += (self.other * (q @ w)[:, None]).mT @ self.other - cross - cross.mT
            total += (mu * (q * k)[:, None]).mT @ mu
        return total

    def right_contraction(self, left: Float[Tensor, "D D"]) -> Float[Tensor, "A A"]:
        """Return ``<H, S>``: ``sum_i <S, G_i> h_i h_i^T``."""
        total = self.inputs.new_zeros(2 * (self.inputs.shape[1],))
        quadratic = ((self.other @ left) * self.other).sum(1)
        for h, mu, w, u, k in self._blocks():
            seen = mu @ left
            s = w @ quadratic - 2 * (seen * u).sum(1) + k * (seen * mu).sum(1)
            total += (h * s[:, None]).mT @ h
        return total

    def diagonal(self) -> Float[Tensor, "D A"]:
        """Return ``sum_i diag(G_i) (x) h_i^2``, as the matrix W is."""
        total = self.raw.new_zeros(self.raw.shape[1], self.inputs.shape[1])
        for h, mu, w, u, k in self._blocks():
            g = w @ self.other.square() - 2 * mu * u + k[:, None] * mu.square()  # [n, D]
            total += g.mT @ h.square()
        return total

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Yield values of some rows at once: h [n, A], mu [n, D], w [n, M], u [n, D] and k [n]."""
        for rows in blocks(len(self.raw), 8 * len(self.other), WEIGHT_BYTES):
            r = self.raw[rows].norm(dim=1, keepdim=True)
            mu = self.raw[rows] / r
            c = mu @ self.other.mT
            w = self.weights(rows, c, r)
            yield self.inputs[rows], mu, w, (w * c) @ self.other, (w * c.square()).sum(1)

    def weights(
        self, rows: slice, c: Float[Tensor, "n M"], r: Float[Tensor, "n one"]
    ) -> Float[Tensor, "n M"]:
        """Return w of some rows of this side, from their cosines and lengths."""
        f = self.a * (c - (self.trace[rows, None] + self.other_trace) / 2) + self.b
        n_pairs = len(self.raw) * len(self.other)
        return self.a**2 * torch.sigmoid(f) * torch.sigmoid(-f) / (r.square() * n_pairs)


def tower_curvature(pairs: TowerPairs, layout: Layout) -> SpectralCurvature:
    """Return H of one projection [W, b] of ``layout``, averaged over its N M pairs."""
    factors = (nearest_factors(pairs, layout),)
    basis, _ = KronCurvature(factors).eigenbasis()
    (block,) = basis.blocks
    spectrum = pairs.rotated(block.left, block.right).diagonal().flatten()
    return KronCurvature(factors, (basis, spectrum)).decompose()


def nearest_factors(pairs: TowerPairs, layout: Layout) -> KroneckerFactors:
    """Minimise ``|H - S (x) A|_F`` by power iteration (Van Loan and Pitsianis 1993)."""
    right = torch.eye(pairs.inputs.shape[1]).to(pairs.inputs)
    norm = 0.0
    for _ in range(MAX_STEPS):
        left = pairs.left_contraction(right)
        left = left / left.norm().clamp_min(torch.finfo(left.dtype).tiny)
        right = pairs.right_contraction(left)
        grown = float(right.norm())
        if grown <= (1 + TOLERANCE) * norm:
            break
        norm = grown
    return KroneckerFactors(*balanced(left, right), layout)
