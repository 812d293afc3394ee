"""Novelty: the weights with which distances recognise a new class, and the sum that is epistemic.

With r, k and l the standardised near, cosine and local (``_near_far``), and w the length:

    novelty   = a r + b k + c l         a, b, c >= 0: how a new class is recognised
    epistemic = novelty + (l - 1)_+ + (w - 2.5)_+       in standard deviations, before and after

The weights are those of a logistic regression, fitted to the fit set itself, of "seen without its
class" (``CrossFitted.left_out``) against "seen without itself": novelty is, up to scale, the log
odds of a new class against a known one. ``RIDGE`` keeps it finite; a, b, c = 1 below three classes,
and a = 0 where classes say nothing. Novelty is learnt from classes alone, and an input that is far
from every point is foreign whatever its novelty: hence the other two terms, which count where they
are larger than those of most known points: (x)_+ is x where it is positive and 0 elsewhere.
Length is left out where the fit set's lengths differ by less than a thousandth, as those of
normalised features, and where the embedding is the direction of h itself, which is the same at any
length.
"""

from __future__ import annotations

from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from laplace_metric.familiarity._cross_fitted import CrossFitted, scored_rows

NOVELTY = [0, 2, 3]
"""near, cosine and local among the scores."""
RIDGE = 1e-3
"""Factor of a^2 + b^2 + c^2, which is added to the mean loss of the logistic regression."""
STEPS, CONVERGES = 25, 1e-4
"""Steps of Newton's method; what is shorter is not halved, since rounding hides what it gains."""
APART, LENGTHS_APART = 1.0, 2.5
"""Standard deviations from which on local, and length, count."""
ROUNDING = 1e-6
"""Share of the largest score; a standard deviation below it is rounding of equal scores."""
LEAST_LENGTH = 1e-3
"""Standard deviation of log lengths; less is the rounding of features that were normalised."""


def novelty_units(
    seen: CrossFitted, lengths: Tensor, by_class: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weights [3], length, centre and scale [6], as in ``NearFar``.

    ``lengths`` are those of all sampled points.
    """
    scores, known = seen.scores, seen.known
    centre, scale = scores.mean(0), scores.std(0)
    if by_class:
        centre[0], scale[0] = scores[known, 0].mean(), scores[known, 0].std()
    scale = torch.where(scale > ROUNDING * scores.abs().amax(0), scale, 1.0)
    # a point whose class has no other member is itself of a new class: it does not count as known
    z = ((scores - centre) / scale)[known]
    weights = scores.new_tensor([float(by_class), 1, 1])
    if seen.left_out is not None:
        new = (seen.left_out - centre) / scale
        weights = novelty_weights(z[:, NOVELTY], new[:, NOVELTY])
    length, scored = _length(lengths), lengths[scored_rows(len(lengths)).to(lengths.device)]
    centre, scale = _with_moments(centre, scale, _novelty(z, weights))
    w = length_of(scored, length)[known]
    return weights, length, *_with_moments(centre, scale, foreign_sum(z, w, weights, centre, scale))


def _with_moments(centre: Tensor, scale: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Append the mean and standard deviation of one more number."""
    deviation = number.std() if varies(number) else number.new_tensor(1.0)
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
    """Return a, b, c >= 0 of a ridge logistic regression, both sides of equal weight.

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
    free = x.new_tensor([[*free, 1.0] for free in product([0.0, 1.0], repeat=3)])  # [8, 4]
    theta, loss = _logistic(x, side, share, free)
    allowed = loss.masked_fill((theta[:, :3] < 0).any(1), torch.inf)
    return theta[allowed.argmin(), :3]


def _logistic(
    x: Tensor, side: Tensor, share: Tensor, free: Float[Tensor, "P 4"]
) -> tuple[Float[Tensor, "P 4"], Float[Tensor, " P"]]:
    """Solve P problems side by side, each with the columns that are ``free``, by Newton's method.

    A step that would raise a loss is halved instead of taken, in the next round. The intercept, the
    last column, has no ridge. All problems at once, so that a device is not waited for.
    """
    ridge = x.new_tensor([RIDGE, RIDGE, RIDGE, 0])

    def losses(theta: Tensor) -> Tensor:
        return share @ softplus(-side[:, None] * (x @ theta.mT)) + theta.square() @ ridge

    theta, length = torch.zeros_like(free), x.new_ones(len(free))
    now = losses(theta)
    outer = (x[:, :, None] * x[:, None]).flatten(1)  # [n, 16]
    for _ in range(STEPS):
        # loss = sum_i q_i log(1 + e^(-s_i x_i.theta)) + ridge.theta^2,
        #     p     = sigmoid(-s x.theta)                               [n, P]
        #     slope = 2 ridge theta - X^T (q s p)                       [P, 4]
        #     bend  = X^T diag(q p (1 - p)) X + 2 diag(ridge)           [P, 4, 4]
        p = torch.sigmoid(-side[:, None] * (x @ theta.mT))
        slope = (2 * ridge * theta - (p * (share * side)[:, None]).mT @ x) * free
        bend = ((p * (1 - p) * share[:, None]).mT @ outer).unflatten(1, (4, 4))
        bend = (bend + torch.diag(2 * ridge)) * free[:, :, None] * free[:, None]
        step = torch.linalg.solve_ex(bend + torch.diag_embed(1 - free), slope)[0]  # no check waits
        moved = theta - length[:, None] * step
        after = losses(moved)
        short = length * step.abs().amax(1) <= CONVERGES
        better = (after <= now) | short
        theta, now = torch.where(better[:, None], moved, theta), torch.where(better, after, now)
        length = torch.where(better, 1.0, length / 2)
    return theta, now


def varies(scores: Tensor) -> bool:
    """Return whether there are two points or more, and not all alike but for rounding."""
    if len(scores) < 2:
        return False
    return ROUNDING * float(scores.abs().max()) < float(scores.std()) < torch.inf
