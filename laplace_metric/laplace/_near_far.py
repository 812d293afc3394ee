"""Near and far: two distances that say how little the fit set determines an input.

With u = h / |h| the direction of what enters the head, mu the mean of the fit set's, m_c that of
class c, T their covariance about mu, W their covariance about the m_c (divided by N - C), and the
ridge e = tr W / D, the mean eigenvalue of W:

    far  t(u) = (u - mu)' (T + e I)^-1 (u - mu)                  is it anywhere near the data?
    near r(u) = min_c (u - m_c)' (W + e I)^-1 (u - m_c) - t(u)   does it belong to a known class?

    epistemic = (r - mean r) / sd r + (t - mean t) / sd t

Mean and standard deviation are cross-fitted: five folds of the fit set, each scored by the
statistics of all other points, which are the sums without that fold's. Nothing else is tuned.

far is regression leverage, so the variance of a Laplace posterior with the total curvature; near +
far the variance of a difference under shared weights, with the curvature of positive pairs and the
ridge as its prior (``docs/one_family.md``). far: Mahalanobis distance to one Gaussian. near + far:
Lee et al. 2018; near: relative Mahalanobis distance (Ren et al. 2021) with a ridge, which is -2
times the log Bayes factor of the nearest known class against a new one in two-covariance PLDA
(Ioffe 2006, Kenny 2010), up to a constant. Directions instead of vectors: Mahalanobis++ (Mueller &
Hein 2025).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.models.features import Block

FOLDS = 5
SCORED = 2_500
"""Points of the fit set, a random choice, from which mean and standard deviation are taken."""
SEED = 0
AT_ONCE = 2**22
"""Distances to class means that are held at once."""
WIDEST = 2_048
"""Head inputs; the time that they take grows with the cube of their number."""
LEAST_RIDGE = 1e-13
"""Variance of a coordinate of directions; less is the rounding of float32 and of the sums."""


class NearAndFar(NamedTuple):
    """near [B], None where no class of the fit set is known, and far [B]."""

    near: Tensor | None
    far: Tensor


@dataclass(frozen=True)
class NearFar:
    """What near and far need of the fit set.

    Parameters
    ----------
    mean : Tensor [D]
        mu, float64: differences to it may be small.
    class_means : Tensor [C, D]
        m_c - mu; no rows where classes say nothing (one member each, or all members alike).
    total_root, within_root : Tensor [D, D]
        R with R R' = (T + e I)^-1, and with (W + e I)^-1; upper triangles.
    centre, scale : Tensor [2]
        Cross-fitted means and standard deviations of near and far, float64.

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> h, labels = torch.randn(60, 4, generator=g).abs(), torch.arange(60) % 3
    >>> fitted = NearFar.of([Block(0, h, labels)], labels.unique(), len(h))
    >>> near, far = fitted.score(-h)
    >>> bool((far > fitted.score(h).far).all())
    True
    """

    mean: Tensor
    class_means: Tensor
    total_root: Tensor
    within_root: Tensor
    centre: Tensor
    scale: Tensor

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        blocks: Iterable[Block],
        classes: Int[Tensor, " C"],
        n_points: int,
        dtype: torch.dtype = torch.float32,
    ) -> NearFar | None:
        """From head inputs and labels, in one pass; None if too few, all alike or too wide.

        ``classes`` are the labels that occur, ascending. Sums are float64, the result is ``dtype``.
        Rows of zeros, which have no direction, do not count. Memory: a few [D, D] and [C, D] in
        float64, and up to 2,500 rows.
        """
        chosen = sorted(_order(n_points)[:SCORED].tolist())
        total, parts = None, []
        for block in blocks:
            if block.features.shape[1] > WIDEST:
                return None
            u, lengths = _directions(block.features)
            labels, has_direction = torch.searchsorted(classes, block.labels), lengths > 0
            total = total or _Sums.zeros(len(classes), u)
            total.add_(u, labels, has_direction)  # nothing here waits for a device
            ends = (bisect_left(chosen, i) for i in (block.start, block.start + len(u)))
            rows = torch.tensor(chosen[slice(*ends)], dtype=torch.int64).to(u.device) - block.start
            parts.append((u[rows], labels[rows], has_direction[rows]))
        gaussians = None if total is None else total.gaussians()
        if total is None or gaussians is None:
            return None
        u, labels, has_direction = (torch.cat(columns) for columns in zip(*parts, strict=True))
        near, far = _cross_fitted(total, u[has_direction], labels[has_direction])
        if far is None:
            return None
        if near is None:
            gaussians, near = gaussians.without_classes(), torch.ones_like(far)
        centre, scale = torch.stack([near, far], 1)
        means, *roots = (tensor.to(dtype) for tensor in gaussians[1:])
        return cls(gaussians.mean, means, roots[0], roots[1], centre, scale)

    def __post_init__(self) -> None:
        n_columns, n_classes = len(self.mean), len(self.class_means)
        inner = n_columns if n_classes else 0
        shapes = [(n_columns,), (n_classes, n_columns), 2 * (n_columns,), (n_columns, inner)]
        actual = [tuple(tensor.shape) for tensor in self.tensors().values()]
        if actual != [*shapes, (2,), (2,)]:
            raise InputError(f"near and far have tensors of shapes {actual}, not {shapes}.")

    def tensors(self) -> dict[str, Tensor]:
        """Everything, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> NearFar:
        """Back from ``tensors``; ``KeyError`` if one is missing."""
        return cls(*(tensors[field.name] for field in fields(cls)))

    def to(self, device: torch.device) -> NearFar:
        """On another device."""
        return NearFar(*(tensor.to(device) for tensor in self.tensors().values()))

    @cached_property
    @full_precision()
    def _classes(self) -> Tensor:
        """The class means as W sees them [C, D]."""
        return self.class_means @ self.within_root

    @full_precision()
    def score(self, features: Float[Tensor, "B D"]) -> NearAndFar:
        """near and far [B] as above, before they are standardised: two products and one [B, C].

        Raises
        ------
        NonFiniteError
            For rows with NaN or infinity.
        InputError
            For rows of zeros, and for another width.
        """
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise InputError(
                f"head inputs are {tuple(features.shape)}: pass [B, {len(self.mean)}]."
            )
        u, lengths = _directions(features)
        _check(lengths)
        x = (u - self.mean).to(self.total_root)
        return _score(x, self.total_root, self.within_root, self._classes)

    def standardised(self, features: Float[Tensor, "B D"]) -> NearAndFar:
        """near and far [B] in standard deviations of the fit set; their sum is the number."""
        near, far = self.score(features)
        (near_centre, far_centre), (near_scale, far_scale) = self.centre, self.scale
        far = (far - far_centre) / far_scale
        return NearAndFar(None if near is None else (near - near_centre) / near_scale, far)

    def epistemic(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """The sum of both parts [B]; far alone where no class is known."""
        near, far = self.standardised(features)
        return far if near is None else near + far


class _Gaussians(NamedTuple):
    """mu, m_c - mu, and the roots of the inverses, float64."""

    mean: Tensor
    class_means: Tensor
    total_root: Tensor
    within_root: Tensor

    def without_classes(self) -> _Gaussians:
        return self._replace(class_means=self.mean[None][:0], within_root=self.mean[None].T[:, :0])

    def score(self, u: Tensor) -> NearAndFar:
        classes = self.class_means @ self.within_root
        return _score(u - self.mean, self.total_root, self.within_root, classes)


@dataclass(frozen=True)
class _Sums:
    """Numbers of points [C], sums of u [C, D] by class, and of u u' [D, D]; float64."""

    counts: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def zeros(cls, n_classes: int, like: Tensor) -> _Sums:
        n_columns = like.shape[1]
        counts = torch.zeros(n_classes, dtype=torch.int64, device=like.device)
        return cls(counts, like.new_zeros(n_classes, n_columns), like.new_zeros(2 * [n_columns]))

    def add_(self, u: Tensor, labels: Tensor, counted: Tensor) -> _Sums:
        """Add u [n, D]; the rows that are not ``counted`` [n] are zeros."""
        self.counts.index_add_(0, labels, counted.to(self.counts))
        self.first.index_add_(0, labels, u)
        self.second.addmm_(u.mT, u)
        return self

    def without(self, u: Float[Tensor, "n D"], labels: Int[Tensor, " n"]) -> _Sums:
        """The sums over all points but these."""
        part = _Sums.zeros(len(self.counts), u).add_(u, labels, torch.ones_like(labels))
        first, second = self.first - part.first, self.second - part.second
        return _Sums(self.counts - part.counts, first, second)

    def gaussians(self) -> _Gaussians | None:
        """None if all points are alike; without classes if all members of each are."""
        known = self.counts > 0
        n, n_classes, width = int(self.counts.sum()), int(known.sum()), len(self.second)
        if n < 2:
            return None
        mean = self.first.sum(0) / n
        total = self.second / n - torch.outer(mean, mean)
        sums = self.first[known]
        means = sums / self.counts[known, None]
        degrees = max(1, n - n_classes)
        within = (self.second - means.mT @ sums) / degrees
        ridge = float(within.trace()) / width
        if n == n_classes or ridge < LEAST_RIDGE * n / degrees:  # what cancelled was n / degrees
            ridge, n_classes = float(total.trace()) / width, 0
        if ridge < LEAST_RIDGE:
            return None
        roots = (_inverse_root(c, ridge) for c in (total, within if n_classes else total))
        gaussians = _Gaussians(mean, means - mean, *roots)
        return gaussians if n_classes else gaussians.without_classes()


def _order(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(SEED))


def _directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """h / |h| [n, D] in float64, and lengths [n], up to a factor; zeros stay zeros."""
    h = features.double()
    if features.dtype == torch.float64:  # whose squares may overflow, as those of float32 do not
        longest = h.abs().amax(1, keepdim=True)
        h = h / longest.where(longest > 0, 1)
    lengths = h.norm(dim=1)
    return h / lengths.where(lengths > 0, 1)[:, None], lengths


def _check(lengths: Tensor) -> None:
    n, broken, zero = len(lengths), int((~lengths.isfinite()).sum()), int((lengths == 0).sum())
    if broken:
        raise NonFiniteError(
            f"{broken} of {n} head inputs of a batch hold NaN or infinity: check those inputs."
        )
    if zero:
        raise InputError(
            f"{zero} of {n} head inputs of a batch are all zeros, and what is exactly zero has no "
            "direction: leave those inputs out."
        )


def _inverse_root(covariance: Tensor, ridge: float) -> Tensor:
    """R with R R' = (C + e I)^-1: the inverse of the Cholesky factor, transposed."""
    eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    factor = torch.linalg.cholesky(covariance + ridge * eye)
    return torch.linalg.solve_triangular(factor, eye, upper=False).mT.contiguous()


def _score(x: Tensor, total_root: Tensor, within_root: Tensor, classes: Tensor) -> NearAndFar:
    """Of x = u - mu [B, D]; the differences to the nearest class are taken, not expanded."""
    far = (x @ total_root).square().sum(1)
    if not len(classes):
        return NearAndFar(None, far)
    a, sizes = x @ within_root, classes.square().sum(1)
    rows = max(64, AT_ONCE // len(classes))
    nearest = torch.cat([(sizes - 2 * part @ classes.mT).argmin(1) for part in a.split(rows)])
    return NearAndFar((a - classes[nearest]).square().sum(1) - far, far)


def _cross_fitted(total: _Sums, u: Tensor, labels: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Mean and standard deviation [2] of near and of far; None where points are too few for them.

    near is of known classes: points whose class the sums without their fold do not hold are left
    out of it.
    """
    folds, scores = _order(len(u)).to(u.device) % FOLDS, []
    for fold in range(min(FOLDS, len(u))):
        held_out, of_class = u[folds == fold], labels[folds == fold]
        rest = total.without(held_out, of_class)
        if (gaussians := rest.gaussians()) is None:
            return None, None
        near, far = gaussians.score(held_out)
        scores.append((None if near is None else near[rest.counts[of_class] > 0], far))
    nears, fars = zip(*scores, strict=True)
    return _moments(nears), _moments(fars)


def _moments(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    values = [part for part in parts if part is not None]
    if len(values) < len(parts):
        return None
    scores = torch.cat(values)
    if len(scores) < 2 or not 0 < float(scores.std()) < torch.inf:
        return None
    return torch.stack([scores.mean(), scores.std()])
