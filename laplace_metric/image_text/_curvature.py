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

The Gauss-Newton curvature of InfoNCE over all pairs, of one projection, the other tower fixed.

The loss of ``clip``, ``(1/N sum_i -log p_i + 1/M sum_j -log q_j) / 2``, has two softmaxes of the
logits ``f_ij = a c_ij``: p over the texts of an image, q over the images of a text. The second
derivative of each in its logits is ``diag(p) - p p^T``, whichever matches. With
``x_ij = P_i t_j / r_i``, the derivative of c_ij in W is ``x_ij h_i^T`` (``_curvature``), and

    H = a^2/2 sum_ij (p_ij / N + q_ij / M) (x_ij x_ij^T) (x) (h_i h_i^T)         as of a sigmoid
      - a^2/2N sum_i (x_i x_i^T) (x) (h_i h_i^T),        x_i = sum_j p_ij x_ij
      - a^2/2M sum_j vec(V_j) vec(V_j)^T,                V_j = sum_i q_ij x_ij h_i^T

The first two lines are block by image; the last couples images, through ``V_j = t_j g_j^T -
sum_i e_ij mu_i h_i^T`` with ``e_ij = q_ij c_ij / r_i`` and ``g_j = sum_i q_ij h_i / r_i``:

    sum_j V_j A V_j^T = T^T diag(g_j^T A g_j) T - T^T Y - Y^T T + X^T [E E^T o H A H^T] X,
    Y = [H A G^T o E]^T X,    likewise for V_j^T S V_j with the two sides exchanged

in O(N^2 + N M) memory. Baumann et al. (2024) keep, for each tower, the softmax of its own inputs
and the first Kronecker factors; here both softmaxes count, as in the loss that was trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.curvature._structures import KronCurvature, KroneckerFactors, balanced
from laplace_metric.heads._jacobian import Layout

MAX_STEPS = 30
TOLERANCE = 1e-3
"""Stop when |S (x) A| grows by no more than this share."""
ROWS = 2**22
"""Pairs whose weights are held at once."""


@dataclass(frozen=True)
class TowerPairs:
    """All pairs of N inputs of one side with M of the other, in float64.

    Parameters
    ----------
    inputs : Tensor [N, A]
        h, what enters the projection, with a 1 for its bias.
    raw : Tensor [N, D]
        z, before it is divided by its length.
    trace : Tensor [N]
        tr S of this side.
    other : Tensor [M, D]
        Unit means of the other side.
    other_trace : Tensor [M]
    a, b : float
        Of the logit.
    """

    inputs: Tensor
    raw: Tensor
    trace: Tensor
    other: Tensor
    other_trace: Tensor
    a: float
    b: float

    def rotated(self, left: Float[Tensor, "D D"], right: Float[Tensor, "A A"]) -> TowerPairs:
        """Seen in Q_S over outputs and Q_A over inputs."""
        h, z, t = self.inputs @ right, self.raw @ left, self.other @ left
        return replace(self, inputs=h, raw=z, other=t)

    def left_contraction(self, right: Float[Tensor, "A A"]) -> Float[Tensor, "D D"]:
        """``<H, A>``: ``sum_i (h_i^T A h_i) G_i``."""
        total = self.raw.new_zeros(2 * (self.raw.shape[1],))
        for h, mu, w, u, k in self._blocks():
            q = ((h @ right) * h).sum(1)
            cross = (q[:, None] * mu).mT @ u
            total += (self.other * (q @ w)[:, None]).mT @ self.other - cross - cross.mT
            total += (mu * (q * k)[:, None]).mT @ mu
        return total

    def right_contraction(self, left: Float[Tensor, "D D"]) -> Float[Tensor, "A A"]:
        """``<H, S>``: ``sum_i <S, G_i> h_i h_i^T``."""
        total = self.inputs.new_zeros(2 * (self.inputs.shape[1],))
        quadratic = ((self.other @ left) * self.other).sum(1)
        for h, mu, w, u, k in self._blocks():
            seen = mu @ left
            s = w @ quadratic - 2 * (seen * u).sum(1) + k * (seen * mu).sum(1)
            total += (h * s[:, None]).mT @ h
        return total

    def diagonal(self) -> Float[Tensor, "D A"]:
        """``sum_i diag(G_i) (x) h_i^2``, as the matrix W is."""
        total = self.raw.new_zeros(self.raw.shape[1], self.inputs.shape[1])
        for h, mu, w, u, k in self._blocks():
            g = w @ self.other.square() - 2 * mu * u + k[:, None] * mu.square()  # [n, D]
            total += g.mT @ h.square()
        return total

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Values of some rows at once: h [n, A], mu [n, D], w [n, M], u [n, D] and k [n]."""
        step = max(1, ROWS // len(self.other))
        for start in range(0, len(self.raw), step):
            rows = slice(start, start + step)
            r = self.raw[rows].norm(dim=1, keepdim=True)
            mu = self.raw[rows] / r
            c = mu @ self.other.mT
            w = self.weights(rows, c, r)
            yield self.inputs[rows], mu, w, (w * c) @ self.other, (w * c.square()).sum(1)

    def weights(
        self, rows: slice, c: Float[Tensor, "n M"], r: Float[Tensor, "n one"]
    ) -> Float[Tensor, "n M"]:
        """w of some rows of this side, from their cosines and lengths."""
        f = self.a * (c - (self.trace[rows, None] + self.other_trace) / 2) + self.b
        n_pairs = len(self.raw) * len(self.other)
        return self.a**2 * torch.sigmoid(f) * torch.sigmoid(-f) / (r.square() * n_pairs)


def tower_curvature(pairs: TowerPairs, layout: Layout) -> SpectralCurvature:
    """H of one projection [W, b] of ``layout``, averaged over its N M pairs."""
    factors = (nearest_factors(pairs, layout),)
    basis, _ = KronCurvature(factors).eigenbasis()
    (block,) = basis.blocks
    spectrum = pairs.rotated(block.left, block.right).diagonal().flatten()
    return KronCurvature(factors, (basis, spectrum)).decompose()


def nearest_factors(pairs: TowerPairs, layout: Layout) -> KroneckerFactors:
    """``min |H - S (x) A|_F`` by power iteration (Van Loan and Pitsianis 1993)."""
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


@dataclass(frozen=True)
class SoftmaxPairs(TowerPairs):
    """All pairs under the two softmaxes; traces and b do not matter, they are constant."""

    def weights(
        self, rows: slice, c: Float[Tensor, "n M"], r: Float[Tensor, "n one"]
    ) -> Float[Tensor, "n M"]:
        """``a^2 (p / N + q / M) / (2 r^2)``."""
        p, q = self._softmaxes(c)
        n, m = len(self.raw), len(self.other)
        return self.a**2 * (p / n + q / m) / (2 * r.square())

    def left_contraction(self, right: Float[Tensor, "A A"]) -> Float[Tensor, "D D"]:
        """``<H, A>``."""
        total = super().left_contraction(right)
        h, (x, s) = self.inputs, self._row_means
        total -= (x * (s * ((h @ right) * h).sum(1))[:, None]).mT @ x
        return total - self._columns(self.other, self.mu, self._e_and_g[1], h, right)

    def right_contraction(self, left: Float[Tensor, "D D"]) -> Float[Tensor, "A A"]:
        """``<H, S>``."""
        total = super().right_contraction(left)
        h, (x, s) = self.inputs, self._row_means
        total -= (h * (s * ((x @ left) * x).sum(1))[:, None]).mT @ h
        return total - self._columns(self._e_and_g[1], h, self.other, self.mu, left)

    def diagonal(self) -> Float[Tensor, "D A"]:
        """Return the diagonal in the shape of the matrix W."""
        total = super().diagonal()
        x, s = self._row_means
        total -= (x.square() * s[:, None]).mT @ self.inputs.square()
        for t, e, g in zip(self.other, self._e_and_g[0].mT, self._e_and_g[1], strict=True):
            v = torch.outer(t, g) - self.mu.mT @ (e[:, None] * self.inputs)  # V_j [D, A]
            total -= self._column_scale * v.square()
        return total.clamp_min(0)  # below 0 by rounding only

    @cached_property
    def mu(self) -> Float[Tensor, "N D"]:
        """Unit means of this side."""
        return torch.nn.functional.normalize(self.raw, dim=1)

    @cached_property
    def _log_z(self) -> Tensor:
        """Compute for each text the log sum over images [M]."""
        return (self.a * self.mu @ self.other.mT).logsumexp(0)

    def _softmaxes(self, c: Tensor) -> tuple[Tensor, Tensor]:
        return (self.a * c).softmax(1), (self.a * c - self._log_z).exp()

    @cached_property
    def _row_means(self) -> tuple[Tensor, Tensor]:
        """``P_i sum_j p_ij t_j`` [N, D] and ``a^2 / (2 N r^2)`` [N]."""
        p = (self.a * self.mu @ self.other.mT).softmax(1)
        t = p @ self.other
        x = t - (t * self.mu).sum(1, keepdim=True) * self.mu
        return x, self.a**2 / (2 * len(self.raw) * self.raw.square().sum(1))

    @property
    def _column_scale(self) -> float:
        return self.a**2 / (2 * len(self.other))

    @cached_property
    def _e_and_g(self) -> tuple[Tensor, Tensor]:
        """e [N, M] and g [M, A]."""
        c = self.mu @ self.other.mT
        q = self._softmaxes(c)[1] / self.raw.norm(dim=1, keepdim=True)
        return q * c, q.mT @ self.inputs

    @cached_property
    def _ee(self) -> Tensor:
        return self._e_and_g[0] @ self._e_and_g[0].mT

    def _columns(self, t: Tensor, x: Tensor, g: Tensor, h: Tensor, a: Tensor) -> Tensor:
        """``a^2/2M sum_j V_j A V_j^T``; with the sides exchanged, of ``V_j^T``."""
        ha = h @ a
        y = ((ha @ g.mT) * self._e_and_g[0]).mT @ x
        cross = t.mT @ y
        total = (t * ((g @ a) * g).sum(1)[:, None]).mT @ t - cross - cross.mT
        total += x.mT @ ((self._ee * (ha @ h.mT)) @ x)
        return self._column_scale * total
