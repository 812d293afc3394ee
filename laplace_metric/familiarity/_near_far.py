"""near, far and ambiguity: what the Gaussians of the fit set make of an input.

With d_c(u) the distance to class c under the within-class covariance (``_class_gaussians``), pi_c
the share of class c in the fit set, a strength t and a label channel Q:

    p(c | u)  = softmax_c( -t/2 d_c(u) + log pi_c )       classes as Gaussians of one covariance
    p(y | u)  = sum_c p(c | u) Q[c, y]                    class c is labelled y in a share Q[c, y]
    ambiguity = -sum_y p(y | u) log p(y | u)              in nats, between 0 and log C

t = 1 is linear discriminant analysis, and p(c | u) the posterior of two-covariance PLDA (Ioffe
2006); t is the temperature of Guo et al. 2017; Q the confusion matrix of Dawid & Skene 1979, or the
noise transition of Patrini et al. 2017, here unknown. Both maximise the cross-fitted likelihood of
the fit set's labels by EM,

    r_nc    = p(c | u_n) Q[c, y_n] / sum_k p(k | u_n) Q[k, y_n]
    Q[c, y] = ([c = y] + sum_{n : y_n = y} r_nc) / (1 + sum_n r_nc)
    t       by one Newton step a round on sum_nc r_nc log p(c | u_n) + log t - t, concave in t

in 30 rounds, with one pseudo-count for the class's own label, and for t = 1 (classes that nothing
confuses would make t infinite). Labels are those of the fit set as they are, their noise included.
More data make the estimate better, and not the ambiguity smaller.

Near and far: two distances that say how little the fit set determines an input.

With t(u) the distance to the mean of the fit set under its covariance, and d_c(u) that to class c
under the within-class covariance (``_class_gaussians``):

    far  t(u)                          is it anywhere near the data?
    near r(u) = min_c d_c(u) - t(u)    does it belong to a known class?

    epistemic = (r - mean r) / sd r + (t - mean t) / sd t

Mean and standard deviation are cross-fitted. Nothing else is tuned.

far is regression leverage, so the variance of a Laplace posterior with the total curvature; near +
far the variance of a difference under shared weights, with the curvature of positive pairs and the
ridge as its prior (``docs/one_family.md``). far: Mahalanobis distance to one Gaussian. near + far:
Lee et al. 2018; near: relative Mahalanobis distance (Ren et al. 2021) with a ridge, which is -2
times the log Bayes factor of the nearest known class against a new one in two-covariance PLDA
(Ioffe 2006, Kenny 2010), up to a constant. Directions instead of vectors: Mahalanobis++ (Mueller &
Hein 2025). ``_label_model`` makes the ambiguity of the same distances.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.familiarity._class_gaussians import (
    AT_ONCE,
    CrossFitted,
    FitSet,
    directions,
    nearest_distance,
    times_upper,
)
from laplace_metric.models._rows import Block

ROUNDS = 30
START = 0.1
"""Share of the labels that are uniform before the first round."""
CELLS = 2**20
"""Distances that EM goes through in a round; fewer points where classes are many."""


class LabelModel(NamedTuple):
    """Model that turns distances to classes into ambiguity.

    Parameters
    ----------
    strength : Tensor [1]
        t.
    log_share : Tensor [C]
        log pi.
    channel : Tensor [C, C]
        Q; its rows sum to 1.

    Examples
    --------
    >>> d, y = torch.tensor([[0.0, 9.0], [9.0, 0.0]]).repeat(50, 1), torch.arange(100) % 2
    >>> model = LabelModel.fit(d, y, y.bincount())
    >>> low, high = model.ambiguity(torch.tensor([[0.0, 9.0], [4.0, 4.0]])).tolist()
    >>> low < 0.1, round(high, 3)
    (True, 0.693)
    """

    strength: Tensor
    log_share: Tensor
    channel: Tensor

    @classmethod
    def fit(
        cls, distances: Float[Tensor, "n C"], labels: Int[Tensor, " n"], counts: Int[Tensor, " C"]
    ) -> LabelModel:
        """From cross-fitted distances, infinite where a class is not known, and class sizes."""
        most = max(1, CELLS // len(counts))
        d, y = distances[:most], labels[:most]
        log_share = counts.to(d).log() - counts.sum().to(d).log()
        eye = torch.eye(len(counts), dtype=d.dtype, device=d.device)
        t, channel = d.new_ones(1), (1 - START) * eye + START / len(counts)
        finite = d.masked_fill(d.isinf(), 0)
        for _ in range(ROUNDS):
            p = torch.softmax(-t / 2 * d + log_share, 1)
            r = p * channel[:, y].mT
            r = r / r.sum(1, keepdim=True).clamp_min(torch.finfo(d.dtype).tiny)
            channel = eye.index_add(1, y, r.mT)
            channel = channel / channel.sum(1, keepdim=True)
            t = _newton(t, p, r, finite)
        return cls(t, log_share, channel)

    def probabilities(self, distances: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """p(y | u); distances may lack a number that all classes of a row share."""
        return torch.softmax(-self.strength / 2 * distances + self.log_share, 1) @ self.channel

    def ambiguity(self, distances: Float[Tensor, "B C"]) -> Float[Tensor, " B"]:
        """The entropy of p(y | u)."""
        return torch.special.entr(self.probabilities(distances)).sum(1).clamp_min(0)


def _newton(t: Tensor, p: Tensor, r: Tensor, d: Tensor) -> Tensor:
    """One step of t on sum_nc r_nc log p_nc + log t - t, at most by a factor of 2."""
    mean = (p * d).sum(1)
    slope = (mean - (r * d).sum(1)).sum() / 2 + 1 / t - 1
    curvature = ((p * d.square()).sum(1) - mean.square()).sum().clamp_min(0) / 4 + 1 / t.square()
    return (t + slope / curvature).clamp(t / 2, 2 * t)


NOTHING_ENTERS = 1e6
"""Epistemic number of an input of which nothing but zeros enters the head, where one is needed."""


class NearAndFar(NamedTuple):
    """near [B], None where no class of the fit set is known, and far [B]."""

    near: Tensor | None
    far: Tensor


@dataclass(frozen=True)
class NearFar:
    """Statistics of the fit set that near, far and ambiguity need.

    Parameters
    ----------
    mean, class_means, total_root, within_root : Tensor
        As in ``ClassGaussians``.
    centre, scale : Tensor [2]
        Cross-fitted means and standard deviations of near and far, float64.
    strength, log_share, channel : Tensor
        As in ``LabelModel``; empty where classes are not known, or more than 2,048.

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
    strength: Tensor
    log_share: Tensor
    channel: Tensor

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
        Memory: a few [D, D] and [C, D] in float64, up to 2,500 rows and their distances [C].
        """
        fit_set = FitSet.read(blocks, classes, n_points)
        if fit_set is None or (factors := fit_set.scatter.factors()) is None:
            return None
        gaussians = factors.gaussians()
        if (scored := fit_set.cross_fitted()) is None:
            return None
        far = _moments(scored.far)
        near = (
            None
            if scored.nearest is None
            else _moments((scored.nearest - scored.far)[scored.known])
        )
        if far is None:
            return None
        if near is None or not len(gaussians.class_means):
            gaussians, near = gaussians.without_classes(), torch.ones_like(far)
        labels = (
            _label_model(scored, fit_set.scatter.counts) if len(gaussians.class_means) else None
        )
        centre, scale = torch.stack([near, far], 1)
        means, *roots = (tensor.to(dtype) for tensor in gaussians[1:])
        empty = (means.new_empty(0), means.new_empty(0), means.new_empty(0, 0))
        model = empty if labels is None else (tensor.to(dtype) for tensor in labels)
        return cls(gaussians.mean, means, roots[0], roots[1], centre, scale, *model)

    def __post_init__(self) -> None:
        n_columns, n_classes = len(self.mean), len(self.class_means)
        inner, n_labels = n_columns if n_classes else 0, n_classes if len(self.strength) else 0
        shapes = [(n_columns,), (n_classes, n_columns), 2 * (n_columns,), (n_columns, inner)]
        shapes += [(2,), (2,), (min(1, n_labels),), (n_labels,), 2 * (n_labels,)]
        actual = [tuple(tensor.shape) for tensor in self.tensors().values()]
        if actual != shapes:
            raise InputError(f"near and far have tensors of shapes {actual}, not {shapes}.")

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
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
        x = self._gaps(features)
        far = times_upper(x, self.total_root).square_().sum(1)
        if not len(self.class_means):
            return NearAndFar(None, far)
        return NearAndFar(nearest_distance(self._whitened(x), self._classes) - far, far)

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

    @full_precision()
    def ambiguity(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"] | None:
        """The entropy of the label distribution [B] in nats; None without a label model.

        One product [B, D] x [D, D] and two of [B, D or C] x [C].

        Raises
        ------
        NonFiniteError, InputError
            As ``score``.
        """
        x = self._gaps(features)
        if not len(self.strength):
            return None
        model = LabelModel(self.strength, self.log_share, self.channel)
        sizes = self._classes.square().sum(1)
        rows = max(64, AT_ONCE // len(sizes))
        parts = self._whitened(x).split(rows)  # |a|^2 is the same for all classes, and left out
        return torch.cat([model.ambiguity(sizes - 2 * part @ self._classes.mT) for part in parts])

    def _whitened(self, x: Tensor) -> Tensor:
        return times_upper(x, self.within_root)

    def _gaps(self, features: Tensor) -> Tensor:
        """u - mu, of which the difference is taken in float64."""
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise InputError(
                f"head inputs are {tuple(features.shape)}: pass [B, {len(self.mean)}]."
            )
        u, lengths = directions(features)
        _check(lengths)
        return (u - self.mean).to(self.total_root)


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


def _label_model(scored: CrossFitted, counts: Tensor) -> LabelModel | None:
    """Fit the label model of the classes that occur; None if too many, or if no class is known."""
    if scored.distances is None or not bool(scored.known.any()):
        return None
    occurs = counts > 0
    number = occurs.long().cumsum(0) - 1
    labels = number[scored.labels[scored.known]]
    return LabelModel.fit(scored.distances[scored.known][:, occurs], labels, counts[occurs])


def _moments(scores: Tensor) -> Tensor | None:
    """Mean and standard deviation [2]; None where points are too few, or all alike."""
    if len(scores) < 2 or not 0 < float(scores.std()) < torch.inf:
        return None
    return torch.stack([scores.mean(), scores.std()])
