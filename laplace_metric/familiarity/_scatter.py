"""Sums of a fit set about the means of its classes, and covariances from them.

The sums are about centres p_c near the class means, so that little cancels and the product is one
of the features' own type:

    N W = sum_i x_i x_i' - sum_c s_c s_c' / n_c        x_i = u_i - p_c, s_c = sum_{i in c} x_i
    N T = N W + sum_c n_c (m_c - mu) (m_c - mu)'       m_c = p_c + s_c / n_c

(Chan, Golub and LeVeque 1983); p_c is the mean of the first members that are read. T and W are
inverted with the ridge e = tr W / D, the mean eigenvalue of W.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric._utils.precision import without_rounding
from laplace_metric.curvature.by_class import upper_gram
from laplace_metric.familiarity._class_gaussians import ClassGaussians

ROUNDINGS = 8
"""Factor of machine epsilon and trace that bounds the rounding of the products."""
COLLAPSED = 1e-3
"""Rounding of distances to points, in units of their spread, beyond which float64 is used."""
LEAST_RIDGE = 1e-13
"""Variance of a coordinate of directions; less is the rounding of float32 and of the sums."""


@dataclass(frozen=True)
class CentredSums:
    """Sums of one pass, about a centre for each class.

    Parameters
    ----------
    counts : Tensor [C] int64
        Number n_c of points of each class.
    centres, first : Tensor [C, D] float64
        Centres p_c, and sums ``s_c = sum_{i in c} x_i`` with ``x_i = u_i - p_c``.
    second : Tensor [D, D] float64
        Sum of products ``sum_i x_i x_i'``, its upper triangle.
    dtype : torch.dtype
        Dtype in which the products are computed: that of the features.
    """

    counts: Tensor
    centres: Tensor
    first: Tensor
    second: Tensor
    dtype: torch.dtype

    @classmethod
    def zeros(cls, n_classes: int, features: Tensor) -> CentredSums:
        """Return the sums of no points."""
        counts = torch.zeros(n_classes, dtype=torch.int64, device=features.device)
        first, second = (
            torch.zeros(n, features.shape[1], dtype=torch.float64, device=features.device)
            for n in (n_classes, features.shape[1])
        )
        return cls(counts, first.clone(), first, second, features.dtype)

    def add_(self, u: Tensor, labels: Tensor, counted: Tensor) -> None:
        """Add u [n, D] in float64; the rows that are not ``counted`` [n] are zeros."""
        # p_c of a class that is met for the first time: the mean of its members here, which stays
        members = torch.zeros_like(self.counts).index_add_(0, labels, counted.to(self.counts))
        new = counted & (self.counts[labels] == 0)
        self.centres.index_add_(
            0, labels, u * (new / members[labels].clamp_min(1).double())[:, None]
        )
        self.counts.add_(members)
        # rows that are not counted are zeros, less the zeros behind the last centre
        centres = torch.cat([self.centres, torch.zeros_like(self.centres[:1])])
        x = u - centres[torch.where(counted, labels, len(self.centres))]  # [n, D]
        self.first.index_add_(0, labels, x)
        # differences to a centre are small, so that their product [D, n] x [n, D] may be shorter
        x = without_rounding(x, 1.0).to(self.dtype)
        self.second.add_(upper_gram(x, x))

    def scatter(self, width: int | None = None) -> Scatter:
        """Return the sums about the means of the classes, and about the mean of all.

        Parameters
        ----------
        width : int or None
            Coordinates of the space, D, where the sums are of a subspace that holds all points.
            None, the default: they are of the whole space.
        """
        counts = self.counts.double()
        offsets = self.first / counts.clamp_min(1)[:, None]
        # rows s_c / sqrt(n_c) [C, D], so that moved' moved = sum_c s_c s_c' / n_c
        moved = without_rounding(offsets * counts.sqrt()[:, None], 1.0).to(self.dtype)
        second = self.second.triu() + self.second.triu(1).mT
        within = second - moved.mT @ moved
        means = self.centres + offsets
        mean = counts @ means / counts.sum().clamp_min(1)
        # N T is N W plus a sum of squares, so that it is not below it, whatever W rounds to
        between = (means - mean) * counts.sqrt()[:, None]
        rounding = ROUNDINGS * torch.finfo(self.dtype).eps * float(second.trace())
        total = within + between.mT @ between
        width = len(mean) if width is None else width
        return Scatter(self.counts, means, mean, within, total, rounding, width)


@dataclass(frozen=True)
class Scatter:
    """Sums of squares of directions, without the divisors of W and T; float64.

    Parameters
    ----------
    counts : Tensor [C] int64
        Number n_c of points of each class.
    means : Tensor [C, D]
        Mean m_c of each class; zeros for classes without points.
    mean : Tensor [D]
        Mean mu of all points.
    within, total : Tensor [D, D]
        Sums of squares about the m_c, and about mu.
    rounding : float
        Bound of the eigenvalues of their rounding error. Leaving points out does not lower it.
    width : int
        Number of coordinates over which the ridge averages: D, also where the sums are of a
        subspace that holds all points.
    """

    counts: Tensor
    means: Tensor
    mean: Tensor
    within: Tensor
    total: Tensor
    rounding: float
    width: int

    @property
    def degrees(self) -> int:
        """Degrees of freedom of W, N - C, at least 1."""
        return max(1, int(self.counts.sum()) - int((self.counts > 0).sum()))

    @property
    def least(self) -> float:
        """Sum of squares of a coordinate that is not rounding."""
        return max(LEAST_RIDGE * int(self.counts.sum()), self.rounding)

    def collapsed(self, dtype: torch.dtype) -> bool:
        """Return whether squares of ``dtype`` lose the differences within classes.

        The nearest point is found by |a|^2 - 2 a b: of the size tr T / tr W times what it compares.
        """
        ratio = float(self.total.trace() / self.within.trace().clamp_min(1e-300))
        return torch.finfo(dtype).eps * ratio * self.width**0.5 > COLLAPSED

    def within_space(self, basis: Float[Tensor, "D E"]) -> Scatter:
        """Return the scatter in coordinates of a space, of E directions, that holds all points."""
        within, total = (basis.mT @ sums @ basis for sums in (self.within, self.total))
        means, mean = self.means @ basis, self.mean @ basis
        return replace(self, means=means, mean=mean, within=within, total=total)

    def without_classes(self, gone: Bool[Tensor, " C"]) -> Scatter:
        """Return the scatter of the other classes, with the W of all.

        T is that W and the differences between the classes that are left.
        """
        counts = self.counts.masked_fill(gone, 0)
        n, left = int(counts.sum()), int((counts > 0).sum())
        # the W of all classes, with the degrees of freedom N - C of those that are left
        within = self.within * (max(0, n - left) / self.degrees)
        means = self.means.masked_fill(gone[:, None], 0)
        mean = counts.double() @ means / max(1, n)
        between = (means - mean) * counts.double().sqrt()[:, None]
        total = within + between.mT @ between
        return replace(self, counts=counts, means=means, mean=mean, within=within, total=total)

    def without_counts(self, gone: Bool[Tensor, " C"]) -> tuple[int, int, Tensor, Tensor]:
        """Return number, classes, counts [C] and mean [D] of the other classes' points."""
        counts = self.counts.masked_fill(gone, 0)
        n, left = int(counts.sum()), int((counts > 0).sum())
        mean = counts.double() @ self.means / max(1, n)
        return n, left, counts.double(), mean

    @property
    def ridge(self) -> float | None:
        """Mean eigenvalue e of W; None where classes say nothing (members alike, or one each)."""
        n, n_classes = int(self.counts.sum()), int((self.counts > 0).sum())
        trace = float(self.within.trace()) / self.width
        return trace / self.degrees if n > n_classes and trace >= self.least else None

    def factors(self) -> Factors | None:
        """Return the factors; None if all points are alike, or all members of each class."""
        n = int(self.counts.sum())
        if n < 2:
            return None
        total, ridge = self.total / n, self.ridge
        least = float(total.trace()) / self.width if ridge is None else ridge
        if least * n < self.least:
            return None
        means = self.means[self.counts > 0] - self.mean
        within = None if ridge is None else cholesky(self.within / self.degrees, ridge)
        return Factors(self.mean, means, cholesky(total, least), within)


class Factors(NamedTuple):
    """mu [D], m_c - mu [C, D], and the Cholesky factors L of T + e I and of W + e I [D, D].

    The second is None where classes say nothing.
    """

    mean: Tensor
    class_means: Tensor
    total: Tensor
    within: Tensor | None

    def gaussians(self) -> ClassGaussians:
        """Return the Gaussians, with the inverses of the factors, to score many points."""
        total = _inverse_root(self.total)
        if self.within is None:
            return ClassGaussians(self.mean, self.class_means, total, total).without_classes()
        return ClassGaussians(self.mean, self.class_means, total, _inverse_root(self.within))


def cholesky(covariance: Tensor, ridge: float) -> Tensor:
    """Return L with L L' = C + e I."""
    eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return torch.linalg.cholesky(covariance + ridge * eye)


def _inverse_root(factor: Tensor) -> Tensor:
    """Return R with R R' = (L L')^-1."""
    eye = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, eye, upper=False).mT.contiguous()
