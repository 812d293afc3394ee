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

Near, far, local and length: distances that say how little the fit set determines an input.

With t(u) the distance to the mean of the fit set under its covariance, d_c(u) that to class c under
the within-class covariance, and l(u), k(u) those to the nearest of up to 2,500 points of the fit
set, under that covariance and as they are (``_class_gaussians``), and s = log |h|, of mean m and
standard deviation v over those points:

    far    t(u)                         is it anywhere near the data?
    near   r(u) = min_c d_c(u) - t(u)   does it belong to a known class?
    local  l(u)                         is it like any point of the fit set?
    length w(h) = |s - m| / v           is it as long as they are?

    novelty   = a r + b k + c l         a, b, c >= 0: how a new class is recognised
    epistemic = novelty + (l - 1)_+ + (w - 2.5)_+       in standard deviations, before and after

Means and standard deviations are cross-fitted. The weights are those of a logistic regression,
fitted to the fit set itself, of "seen without its class" (``CrossFitted.left_out``) against "seen
without its fold": novelty is, up to scale, the log odds of a new class against a known one.
``RIDGE`` keeps it finite; a, b, c = 1 below three classes, and a = 0 where classes say nothing.
Novelty has learnt from classes alone, and what is foreign to every point is so whatever it says:
hence the other two, which count where they are larger than those of most known points: (x)_+ is x
where it is positive and 0 elsewhere. Length is left out where the fit set's lengths differ by less
than a thousandth, as those of normalised features, and where the embedding is the direction of h
itself, which is the same at any length.

far is regression leverage, so the variance of a Laplace posterior with the total curvature; near +
far and local are variances of a difference under shared weights, with the curvature of positive
pairs and the ridge as its prior, to a class mean and to a point (``docs/one_family.md``); w^2 is
the leverage, without a ridge, of the one feature that directions lack. far:
Mahalanobis distance to one Gaussian. near + far: Lee et al. 2018; near: relative Mahalanobis
distance (Ren et al. 2021) with a ridge, which is -2 times the log Bayes factor of the nearest known
class against a new one in two-covariance PLDA (Ioffe 2006, Kenny 2010), up to a constant. k:
nearest neighbour distance (Sun et al. 2022, k = 1), the limit of local under a strong prior.
Directions instead of vectors: Mahalanobis++ (Mueller & Hein 2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from laplace_metric._utils.precision import full_precision
from laplace_metric.embedding import FitSetParts
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.familiarity._directions import directions
from laplace_metric.familiarity._fit_set import CrossFitted, FitSet
from laplace_metric.familiarity._nearest import nearest_distance, nearest_points, rows_at_once
from laplace_metric.familiarity._triangles import times_upper
from laplace_metric.models._reading import Block
from laplace_metric.models._rows import bad_rows

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


@dataclass(frozen=True)
class NearFar:
    """Statistics of the fit set that near, far, local, epistemic and ambiguity need.

    Parameters
    ----------
    mean, class_means, total_root, within_root : Tensor
        As in ``ClassGaussians``.
    points : Tensor [S, D]
        u_i - mu of the kept points, S <= 2,500; float64 where classes have collapsed.
    weights : Tensor [3]
        a, b, c, float64.
    length : Tensor [2]
        m and v, float64; empty where lengths are not used.
    centre, scale : Tensor [6]
        Cross-fitted means and standard deviations of near, far, cosine, local, novelty and of the
        sum, float64.
    strength, log_share, channel : Tensor
        As in ``LabelModel``; empty where classes are not known, or more than 2,048.

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

    mean: Tensor
    class_means: Tensor
    total_root: Tensor
    within_root: Tensor
    points: Tensor
    weights: Tensor
    length: Tensor
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
        *,
        use_lengths: bool = True,
    ) -> NearFar | None:
        """From head inputs and labels, in one pass; None if too few, all alike or too wide.

        ``classes`` are the labels that occur, ascending. Sums are float64, the result is ``dtype``.
        Without ``use_lengths`` an input is as familiar at any length.
        Memory: a few [D, D] and [C, D] in float64, up to 2,500 rows and their distances [C].
        """
        fit_set = FitSet.read(blocks, classes, n_points, use_lengths=use_lengths)
        if fit_set is None or (factors := fit_set.scatter.factors()) is None:
            return None
        gaussians = factors.gaussians()
        seen = fit_set.cross_fitted(by_class=len(gaussians.class_means) > 0)
        if seen is not None and not _varies(seen.scores[seen.known, 0]):
            gaussians, seen = gaussians.without_classes(), fit_set.cross_fitted(by_class=False)
        if seen is None or not _varies(seen.scores[:, 1]):
            return None
        by_class = len(gaussians.class_means) > 0
        units = _units(seen, fit_set.lengths, by_class)
        labels = _label_model(seen, fit_set.scatter.counts) if by_class else None
        means, *roots = (tensor.to(dtype) for tensor in gaussians[1:])
        empty = (means.new_empty(0), means.new_empty(0), means.new_empty(0, 0))
        model = empty if labels is None else (tensor.to(dtype) for tensor in labels)
        exact = torch.promote_types(dtype, fit_set.dtype)
        points = (fit_set.u - gaussians.mean).to(exact)
        return cls(gaussians.mean, means, roots[0], roots[1], points, *units, *model)

    def __post_init__(self) -> None:
        n_columns, n_classes = len(self.mean), len(self.class_means)
        inner, n_labels = n_columns if n_classes else 0, n_classes if len(self.strength) else 0
        shapes = [(n_columns,), (n_classes, n_columns), 2 * (n_columns,), (n_columns, inner)]
        shapes += [(len(self.points), n_columns), (3,), (2 if len(self.length) else 0,), (6,), (6,)]
        shapes += [(min(1, n_labels),), (n_labels,), 2 * (n_labels,)]
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

    @cached_property
    @full_precision()
    def _white(self) -> Tensor:
        """The kept points as ``local`` sees them [S, D]."""
        return times_upper(self.points, self._root.to(self.points))

    @property
    def _root(self) -> Tensor:
        return self.within_root if len(self.class_means) else self.total_root

    @full_precision()
    def score(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B 5"]:
        """near, far, cosine and local as above, before they are standardised, and length.

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
            near = nearest_distance(white, self._classes) - far
        exact = x.to(self.points), self.points, white.to(self.points), self._white
        cosine, local = nearest_points(*exact)
        columns = [near, far, cosine, local, length_of(lengths, self.length)]
        return torch.stack([column.to(far) for column in columns], 1)

    @full_precision()
    def parts(self, features: Float[Tensor, "B D"]) -> FitSetParts:
        """near, far, local and epistemic [B] in standard deviations of the fit set."""
        raw = self.score(features)
        centre, scale, weights = (x.to(raw) for x in (self.centre, self.scale, self.weights))
        z = (raw[:, :4] - centre[:4]) / scale[:4]
        number = (foreign_sum(z, raw[:, 4], weights, centre, scale) - centre[5]) / scale[5]
        return FitSetParts(z[:, 0] if len(self.class_means) else None, z[:, 1], z[:, 3], number)

    def epistemic(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """The epistemic number of ``parts``."""
        return self.parts(features).epistemic

    @full_precision()
    def ambiguity(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"] | None:
        """The entropy of the label distribution [B] in nats; None without a label model.

        One product [B, D] x [D, D] and two of [B, D or C] x [C].

        Raises
        ------
        NonFiniteError, InputError
            As ``score``.
        """
        x = self._gaps(features)[0]
        if not len(self.strength):
            return None
        model = LabelModel(self.strength, self.log_share, self.channel)
        sizes = self._classes.square().sum(1)
        rows = rows_at_once(self._classes)
        # |a|^2 is the same for all classes, and left out
        parts = times_upper(x, self.within_root).split(rows)
        return torch.cat([model.ambiguity(sizes - 2 * part @ self._classes.mT) for part in parts])

    def _gaps(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """u - mu, of which the difference is taken in float64, and log |h|."""
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise InputError(
                f"head inputs are {tuple(features.shape)}: pass [B, {len(self.mean)}]."
            )
        u, lengths = directions(features)
        _check(lengths)
        return (u - self.mean).to(self.total_root), lengths


def _check(lengths: Tensor) -> None:
    n, zero = len(lengths), lengths == -torch.inf
    broken = ~(zero | lengths.isfinite())
    if bool(broken.any()):
        raise NonFiniteError(
            f"{int(broken.sum())} of {n} head inputs of a batch hold NaN or infinity: check those "
            f"inputs, {bad_rows(broken)}."
        )
    if bool(zero.any()):
        raise InputError(
            f"{int(zero.sum())} of {n} head inputs of a batch are all zeros, and what is exactly "
            f"zero has no direction: leave those inputs out, {bad_rows(zero)}."
        )


def _label_model(scored: CrossFitted, counts: Tensor) -> LabelModel | None:
    """Fit the label model of the classes that occur; None if too many, or if no class is known."""
    if scored.distances is None or not bool(scored.known.any()):
        return None
    occurs = counts > 0
    number = occurs.long().cumsum(0) - 1
    labels = number[scored.labels[scored.known]]
    return LabelModel.fit(scored.distances[scored.known][:, occurs], labels, counts[occurs])


NOVELTY = [0, 2, 3]
"""near, cosine and local among the scores."""
RIDGE = 1e-3
"""Times a^2 + b^2 + c^2, added to the mean loss of the logistic regression."""
STEPS, CONVERGES = 25, 1e-4
"""Steps of Newton's method; what is shorter is not halved, since rounding hides what it gains."""
APART, LENGTHS_APART = 1.0, 2.5
"""Standard deviations from which on local, and length, count."""
LEAST_LENGTH = 1e-3
"""Standard deviation of log lengths; less is the rounding of features that were normalised."""


def _units(
    seen: CrossFitted, lengths: Tensor, by_class: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights [3], length, centre and scale [6], as in ``NearFar``."""
    scores, known = seen.scores, seen.known
    centre, scale = scores.mean(0), scores.std(0)
    if by_class:
        centre[0], scale[0] = scores[known, 0].mean(), scores[known, 0].std()
    scale = torch.where(scale > 0, scale, 1.0)
    z = ((scores - centre) / scale)[known]
    weights = scores.new_tensor([float(by_class), 1, 1])
    if seen.left_out is not None:
        new = (seen.left_out - centre) / scale
        weights = novelty_weights(z[:, NOVELTY], new[:, NOVELTY])
    length = _length(lengths)
    centre, scale = _with_moments(centre, scale, _novelty(z, weights))
    w = length_of(lengths, length)[known]
    return weights, length, *_with_moments(centre, scale, foreign_sum(z, w, weights, centre, scale))


def _with_moments(centre: Tensor, scale: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Append the mean and standard deviation of one more number."""
    deviation = number.std() if _varies(number) else number.new_tensor(1.0)
    return torch.cat([centre, number.mean()[None]]), torch.cat([scale, deviation[None]])


def _length(s: Tensor) -> Tensor:
    """Return m and v of log lengths [n]; empty where they hardly vary."""
    found = torch.stack([s.mean(), s.std()])
    return found if len(s) > 1 and float(found[1]) > LEAST_LENGTH else s[:0]


def length_of(s: Float[Tensor, " B"], length: Tensor) -> Float[Tensor, " B"]:
    """Return w of log lengths; 0 where they are not used."""
    return (s - length[0]).abs() / length[1] if len(length) else torch.zeros_like(s)


def _novelty(z: Tensor, weights: Tensor) -> Tensor:
    a, b, c = weights[0], weights[1], weights[2]  # exporters get a list of columns wrong
    return a * z[:, 0] + b * z[:, 2] + c * z[:, 3]


def foreign_sum(z: Tensor, w: Tensor, weights: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
    """Return novelty + (local - 1)_+ + (w - 2.5)_+, in standard deviations."""
    number = (_novelty(z, weights) - centre[4]) / scale[4]
    return number + (z[:, 3] - APART).relu() + (w - LENGTHS_APART).relu()


def novelty_weights(known: Float[Tensor, "n 3"], new: Float[Tensor, "m 3"]) -> Float[Tensor, " 3"]:
    """a, b, c >= 0 of a ridge logistic regression, both sides of equal weight.

    The problem is convex: among the solutions with some weights fixed at 0 and the others free,
    the best that has no negative weight is the optimum.

    Examples
    --------
    >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    >>> w = novelty_weights(torch.cat([x, x, -x], 1), torch.cat([x + 2, x, -x - 2], 1))
    >>> bool(w[0] > 1), w[1:].tolist()
    (True, [0.0, 0.0])
    """
    x = torch.cat([known, new])
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    side = torch.cat([x.new_full((len(known),), -1.0), x.new_ones(len(new))])
    share = torch.where(side > 0, x.new_tensor(0.5 / len(new)), 0.5 / len(known))
    best, least = x.new_zeros(4), torch.inf
    for free in product([0.0, 1.0], repeat=3):
        theta, loss = _logistic(x * x.new_tensor([*free, 1.0]), side, share)
        if loss < least and bool((theta[:3] >= 0).all()):
            best, least = theta, loss
    return best[:3]


def _logistic(x: Tensor, side: Tensor, share: Tensor) -> tuple[Tensor, float]:
    """Newton's method with halved steps; the ridge does not bind the intercept, the last column."""
    ridge = x.new_tensor([RIDGE, RIDGE, RIDGE, 0])

    def loss(theta: Tensor) -> float:
        return float(share @ softplus(-side * (x @ theta)) + ridge @ theta.square())

    theta = x.new_zeros(4)
    now = loss(theta)
    for _ in range(STEPS):
        p = torch.sigmoid(-side * (x @ theta))
        slope = 2 * ridge * theta - x.mT @ (share * side * p)
        bend = (x * (share * p * (1 - p))[:, None]).mT @ x + torch.diag(2 * ridge)
        step = torch.linalg.solve(bend, slope)
        while (after := loss(theta - step)) > now and float(step.abs().max()) > CONVERGES:
            step = step / 2
        theta, now = theta - step, after
    return theta, now


def _varies(scores: Tensor) -> bool:
    """Return whether there are two points or more, and not all alike."""
    return len(scores) > 1 and 0 < float(scores.std()) < torch.inf
