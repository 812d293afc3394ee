"""Near, far, local and length: distances that say how little the fit set determines an input.

With t(u) the distance to the mean of the fit set under its covariance, d_c(u) that to class c under
the within-class covariance, and l(u), k(u) those to the nearest of up to 2,500 points of the fit
set, under that covariance and as they are (``_fit_set``), and s = log |h|, of mean m and standard
deviation v over those points:

    far    t(u)                         is it anywhere near the data?
    near   r(u) = min_c d_c(u) - t(u)   does it belong to a known class?
    local  l(u)                         is it like any point of the fit set?
    length w(h) = |s - m| / v           is it as long as they are?

Means and standard deviations are of points that are left out one at a time (``_cross_fitted``).
``_novelty`` adds them up to one epistemic number, and ``_label_model`` computes the ambiguity.

far is regression leverage, so the variance of a Laplace posterior with the total curvature; near +
far and local are variances of a difference under shared weights, with the curvature of positive
pairs and the ridge as its prior, to a class mean and to a point (``docs/mathematics.md``); w^2 is
the leverage, without a ridge, of the one feature that directions lack. far:
Mahalanobis distance to one Gaussian. near + far: Lee et al. 2018; near: relative Mahalanobis
distance (Ren et al. 2021) with a ridge, which is -2 times the log Bayes factor of the nearest known
class against a new one in two-covariance PLDA (Ioffe 2006, Kenny 2010), up to a constant. k:
nearest neighbour distance (Sun et al. 2022, k = 1), the limit of local under a strong prior.
Directions instead of vectors: Mahalanobis++ (Mueller & Hein 2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.embedding import FitSetParts
from laplace_metric.errors import FileFormatError, InputError, NonFiniteError
from laplace_metric.familiarity._class_gaussians import ClassGaussians
from laplace_metric.familiarity._cross_fitted import CrossFitted, left_one_out
from laplace_metric.familiarity._directions import directions
from laplace_metric.familiarity._fit_set import FitSet
from laplace_metric.familiarity._label_model import ALL, LabelModel
from laplace_metric.familiarity._nearest import (
    KeptPoints,
    nearest_distance,
    nearest_points,
    rows_at_once,
)
from laplace_metric.familiarity._novelty import foreign_sum, length_of, novelty_units, varies
from laplace_metric.familiarity._scatter import Factors
from laplace_metric.familiarity._triangles import times_upper
from laplace_metric.inputs._rows_in_errors import bad_rows
from laplace_metric.io import POSITIVE, UNIT, record, saved
from laplace_metric.models._blocks import Block

NOTHING_ENTERS = 1e6
"""Epistemic number, where one is needed, of an input of which only zeros enter the head."""


@dataclass(frozen=True)
class NearFar:
    """Statistics of the fit set that near, far, local, epistemic and ambiguity need.

    Parameters
    ----------
    mean, class_means, total_root, within_root : Tensor
        Gaussians of the fit set, as in ``ClassGaussians``.
    points : Tensor [S, D]
        Kept points of the fit set less their mean, ``u_i - mu``, with S <= 2,500; float64 where
        classes have collapsed.
    weights : Tensor [3]
        Weights a, b, c of the novelty, float64.
    length : Tensor [2]
        Mean m and variance v of log lengths, float64; empty where lengths are not used.
    centre, scale : Tensor [6]
        Cross-fitted means and standard deviations of near, far, cosine, local, novelty and of the
        sum, float64.
    strength, log_share, channel : Tensor
        Label model, as in ``LabelModel``; empty where classes are not known.
    told : Tensor [M] or [0]
        Labels of the columns of ``channel``; empty, the default, where these are all K.

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> h, labels = torch.randn(60, 4, generator=g).abs(), torch.arange(60) % 3
    >>> fitted = NearFar.of([Block(0, h, labels)], labels.unique(), len(h))
    >>> bool((fitted.score(-h) > fitted.score(h))[:, [1, 3]].all())
    True
    >>> bool(fitted.epistemic(99 * h).min() > fitted.epistemic(h).max())
    True
    """

    of_weights: ClassVar[bool] = False
    mean: Float[Tensor, " D"] = saved(-UNIT, UNIT)
    class_means: Float[Tensor, "C D"] = saved(-2 * UNIT, 2 * UNIT)  # differences of unit means
    total_root: Float[Tensor, "D D"] = saved()
    within_root: Float[Tensor, "D I"] = saved()
    points: Float[Tensor, "S D"] = saved(-2 * UNIT, 2 * UNIT)
    weights: Float[Tensor, " 3"] = saved(0)
    length: Float[Tensor, " L"] = saved()
    centre: Float[Tensor, " 6"] = saved()
    scale: Float[Tensor, " 6"] = saved(POSITIVE)
    strength: Float[Tensor, " s"] = saved(POSITIVE)
    log_share: Float[Tensor, " K"] = saved(most=0)
    channel: Float[Tensor, "K M"] = saved(0, UNIT)
    told: Int[Tensor, " M"] = saved(0, empty=True, default_factory=lambda: ALL)

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        blocks: Iterable[Block],
        classes: Int[Tensor, " C"],
        n_points: int,
        dtype: torch.dtype = torch.float32,
        *,
        use_lengths: bool = True,
        width: int | None = None,
    ) -> NearFar | None:
        """Build from head inputs and labels, in one pass; None if too few, all alike or too wide.

        ``classes`` are the labels that occur, ascending. Sums are float64, the result is ``dtype``.
        Without ``use_lengths`` an input is as familiar at any length. ``width`` is that of the
        space, where head inputs are coordinates of a subspace that holds all of them.
        Memory: a few [D, D] and [C, D] in float64, up to 2,500 rows and their distances [C].
        """
        fit_set = FitSet.read(blocks, classes, n_points, use_lengths=use_lengths, width=width)
        if fit_set is None or (factors := fit_set.scatter.factors()) is None:
            return None
        gaussians = factors.gaussians()
        inside, scored = _inside(fit_set, factors, gaussians)
        inside = inside.with_bursts_joined()
        seen = left_one_out(inside, scored)
        if seen is not None and not varies(seen.scores[seen.known, 0]):
            gaussians, seen = gaussians.without_classes(), left_one_out(inside, scored, False)
        if seen is None or not varies(seen.scores[:, 1]):
            return None
        by_class = len(gaussians.class_means) > 0
        units = novelty_units(seen, fit_set.sample.lengths, by_class)
        labels = _fitted_label_model(seen, fit_set.scatter.counts) if by_class else None
        means, *roots = (tensor.to(dtype) for tensor in gaussians[1:])
        model = [means.new_empty(0), means.new_empty(0), means.new_empty(0, 0)]
        if labels is not None:
            model = [*(tensor.to(dtype) for tensor in labels[:3]), labels.told]
        exact = torch.promote_types(dtype, fit_set.dtype)
        points = (fit_set.sample.u - gaussians.mean).to(exact)
        return cls(gaussians.mean, means, roots[0], roots[1], points, *units, *model)

    def check_saved(self) -> None:
        """Raise FileFormatError for parts of a file that do not belong to one fit."""
        n_columns, n_classes, n_labels = len(self.mean), len(self.class_means), len(self.log_share)
        lengths = {
            "within_root": (n_columns if n_classes else 0,),
            "length": (0, 2),
            "log_share": (0, n_classes),
            "strength": (min(1, n_labels),),
            "channel": (len(self.told) or n_labels,),
        }
        for name, wanted in lengths.items():
            shape = list(getattr(self, name).shape)
            if shape[-1] not in wanted:
                raise FileFormatError(
                    f"posterior/near_far/{name} has shape {shape}, which does not belong to "
                    f"{n_classes} class_means of {n_columns}"
                )
        if len(self.told) and int(self.told.max()) >= n_labels:
            raise FileFormatError(
                f"posterior/near_far/told holds {int(self.told.max())}, and there are {n_labels} "
                "labels"
            )
        if len(self.length) and not float(self.length[1]) > 0:
            raise FileFormatError("posterior/near_far/length holds a deviation that is not above 0")

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, by name."""
        return record(self)[1]

    def to(self, device: torch.device) -> NearFar:
        """Return the same on another device."""
        return NearFar(*(tensor.to(device) for tensor in self.tensors().values()))

    @cached_property
    @full_precision()
    def _classes(self) -> Tensor:
        """The class means as W sees them [C, D]."""
        return self.class_means @ self.within_root

    @cached_property
    def _class_sizes(self) -> Tensor:
        """Squared lengths of ``_classes`` [C]: of many classes they take longer than a query."""
        return self._classes.square().sum(1)

    @cached_property
    @full_precision()
    def _kept(self) -> KeptPoints:
        """The kept points, and as ``local`` sees them."""
        return KeptPoints.of(self.points, times_upper(self.points, self._root.to(self.points)))

    @property
    def _root(self) -> Tensor:
        return self.within_root if len(self.class_means) else self.total_root

    @full_precision()
    def score(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B 5"]:
        """Return near, far, cosine and local before they are standardised, and length.

        near is 0 without usable classes, length where it is not used. Two products
        [B, D] x [D, D], one [B, D] x [D, C] and two [B, D] x [D, S].

        Raises
        ------
        NonFiniteError
            For rows with NaN or infinity.
        InputError
            For rows of zeros, and for another width.
        """
        x, lengths = self._gaps(features)
        far = times_upper(x, self.total_root).square_().sum(1)
        white, near = times_upper(x, self._root), torch.zeros_like(far)
        if len(self.class_means):
            near = nearest_distance(white, self._classes, self._class_sizes) - far
        cosine, local = nearest_points(x.to(self.points), white.to(self.points), self._kept)
        columns = [near, far, cosine, local, length_of(lengths, self.length)]
        return torch.stack([column.to(far) for column in columns], 1)

    @full_precision()
    def parts(self, features: Float[Tensor, "B D"]) -> FitSetParts:
        """Return near, far, local and epistemic [B] in standard deviations of the fit set."""
        raw = self.score(features)
        centre, scale, weights = (x.to(raw) for x in (self.centre, self.scale, self.weights))
        z = (raw[:, :4] - centre[:4]) / scale[:4]
        number = (foreign_sum(z, raw[:, 4], weights, centre, scale) - centre[5]) / scale[5]
        return FitSetParts(z[:, 0] if len(self.class_means) else None, z[:, 1], z[:, 3], number)

    def epistemic(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """Return the epistemic number of ``parts``."""
        return self.parts(features).epistemic

    @full_precision()
    def ambiguity(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"] | None:
        """Return the entropy of the label distribution [B] in nats; None without a label model.

        One product [B, D] x [D, D] and two of [B, D or C] x [C].

        Raises
        ------
        NonFiniteError, InputError
            As ``score``.
        """
        x = self._gaps(features)[0]
        if not len(self.strength):
            return None
        model = LabelModel(self.strength, self.log_share, self.channel, self.told)
        classes, sizes = self._classes, self._class_sizes
        # |a|^2 is the same for all classes, and left out
        parts = times_upper(x, self.within_root).split(rows_at_once(classes))
        return torch.cat([model.ambiguity(sizes - 2 * part @ classes.mT) for part in parts])

    def _gaps(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return u - mu, a difference taken in float64, and log |h|."""
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise InputError(
                f"head inputs are {tuple(features.shape)}: pass [B, {len(self.mean)}]."
            )
        u, lengths = directions(features)
        _check(lengths)
        return (u - self.mean).to(self.total_root), lengths


def _inside(
    fit_set: FitSet, factors: Factors, gaussians: ClassGaussians
) -> tuple[FitSet, ClassGaussians]:
    """Return the fit set in the space that few points span, and its Gaussians."""
    inside = fit_set.spanned()
    inner = factors if inside is fit_set else inside.scatter.factors()
    # the traces differ by rounding, at which one of them may be taken for zero
    if inside is fit_set or inner is None or (inner.within is None) != (factors.within is None):
        return fit_set, gaussians
    return inside, inner.gaussians()


def _check(lengths: Tensor) -> None:
    if bool(lengths.isfinite().all()):
        return
    n, zero = len(lengths), lengths == -torch.inf
    broken = ~(zero | lengths.isfinite())
    if bool(broken.any()):
        raise NonFiniteError(
            f"{int(broken.sum())} of {n} head inputs of a batch hold NaN or infinity: check those "
            f"inputs, {bad_rows(broken)}."
        )
    raise InputError(
        f"{int(zero.sum())} of {n} head inputs of a batch are all zeros, and what is exactly "
        f"zero has no direction: leave those inputs out, {bad_rows(zero)}."
    )


def _fitted_label_model(scored: CrossFitted, counts: Tensor) -> LabelModel | None:
    """Fit the label model of the classes that occur; None if no class is known."""
    if scored.distances is None or not bool(scored.known.any()):
        return None
    known = scored.known[: len(scored.distances)]
    occurs = counts > 0
    number = occurs.long().cumsum(0) - 1
    labels = number[scored.labels[: len(known)][known]]
    return LabelModel.fit(scored.distances[known][:, occurs], labels, counts[occurs])
