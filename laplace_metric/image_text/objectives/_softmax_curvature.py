"""The Gauss-Newton curvature of InfoNCE over all pairs, of one projection, the other tower fixed.

The loss of ``clip``, ``(1/N sum_i -log p_i + 1/M sum_j -log q_j) / 2``, has two softmaxes of the
logits ``f_ij = a c_ij``: p over the texts of an image, q over the images of a text. The second
derivative of each in its logits is ``diag(p) - p p^T``, whichever matches. With
``x_ij = P_i t_j / r_i``, the derivative of c_ij in W is ``x_ij h_i^T``
(``_sigmoid_curvature``), and

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

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.image_text.objectives._sigmoid_curvature import TowerPairs


@dataclass(frozen=True)
class SoftmaxPairs(TowerPairs):
    """All pairs under the two softmaxes; traces and b do not matter, they are constant."""

    def weights(
        self, rows: slice, c: Float[Tensor, "n M"], r: Float[Tensor, "n one"]
    ) -> Float[Tensor, "n M"]:
        """Return ``a^2 (p / N + q / M) / (2 r^2)``."""
        p, q = self._softmaxes(c)
        n, m = len(self.raw), len(self.other)
        return self.a**2 * (p / n + q / m) / (2 * r.square())

    def left_contraction(self, right: Float[Tensor, "A A"]) -> Float[Tensor, "D D"]:
        """Return ``<H, A>``."""
        total = super().left_contraction(right)
        h, (x, s) = self.inputs, self._row_means
        total -= (x * (s * ((h @ right) * h).sum(1))[:, None]).mT @ x
        return total - self._columns(self.other, self.mu, self._e_and_g[1], h, right)

    def right_contraction(self, left: Float[Tensor, "D D"]) -> Float[Tensor, "A A"]:
        """Return ``<H, S>``."""
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
        """Compute ``a^2/2M sum_j V_j A V_j^T``; with the sides exchanged, of ``V_j^T``."""
        # t and g have a row for each V_j, x, h and E one for each term of its sum: products with
        # [N, N] and [N, M], so that no V_j [D, A] is formed
        ha = h @ a
        y = ((ha @ g.mT) * self._e_and_g[0]).mT @ x
        cross = t.mT @ y
        total = (t * ((g @ a) * g).sum(1)[:, None]).mT @ t - cross - cross.mT
        total += x.mT @ ((self._ee * (ha @ h.mT)) @ x)
        return self._column_scale * total
