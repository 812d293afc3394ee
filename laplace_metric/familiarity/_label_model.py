"""Ambiguity: the entropy of an input's label, by Gaussians of one covariance and a label channel.

With d_c(u) the distance to class c under the within-class covariance (``_fit_set``), pi_c the share
of class c in the fit set, a strength t and a label channel Q:

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

in 30 rounds, with one pseudo-count for the class's own label, and for t = 1 (classes that are never
confused would make t infinite). Labels are those of the fit set as they are, their noise included.
More data make the estimate better, and not the ambiguity smaller.

A label that no point of EM has is that of its own class alone: column y of Q is zero but for
Q[y, y], which is what the rest of its row leaves of 1. So EM goes through the M columns of labels
that it has seen, and Q is kept as these where classes are many.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.precision import without_rounding

SQUARE = 2_048
"""Classes up to which the whole channel is kept; of more, the columns of the labels that EM saw."""
ROUNDS = 30
START = 0.1
"""Share of the labels that are uniform before the first round of EM."""
CELLS = 2**20
"""Distances that EM goes through in a round; fewer points where classes are many."""
FEWEST = 100
"""Points that EM goes through at least, however many classes there are."""

ALL = torch.empty(0, dtype=torch.int64)
"""Labels of the columns of a channel that has all."""


class LabelModel(NamedTuple):
    """Model that turns distances to classes into ambiguity.

    Parameters
    ----------
    strength : Tensor [1]
        Factor t of the distances.
    log_share : Tensor [C]
        Logarithm of the share of each class, log pi.
    channel : Tensor [C, C] or [C, M]
        Shares Q in which class c is labelled y; the rows sum to 1. Of more than ``SQUARE`` classes,
        the columns of the labels ``told``.
    told : Tensor [M] or [0]
        Labels of the columns; empty, the default, where these are all labels.

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
    told: Tensor = ALL

    @classmethod
    def fit(
        cls, distances: Float[Tensor, "n C"], labels: Int[Tensor, " n"], counts: Int[Tensor, " C"]
    ) -> LabelModel:
        """Fit to cross-fitted distances, infinite where a class is not known, and class sizes."""
        n_classes, most = len(counts), points_of(len(counts))
        d, y = distances[:most], labels[:most]
        log_share = counts.to(d).log() - counts.sum().to(d).log()
        told, y = y.unique(return_inverse=True)
        own = d.new_zeros(len(told), n_classes).scatter_(1, told[:, None], 1.0)
        others = 1 - own.sum(0)  # the pseudo-count of a class whose label no point has
        t, of_label = d.new_ones(1), (1 - START) * own + START / n_classes  # Q' [told, C]
        finite = d.masked_fill(d.isinf(), 0)
        squared = finite.square()
        for _ in range(ROUNDS):
            p = torch.softmax(-t / 2 * d + log_share, 1)  # p(c | u_n) [n, C]
            r = p * of_label[y]  # times Q[c, y_n]: r_nc before its rows sum to 1
            r /= r.sum(1, keepdim=True).clamp_min(torch.finfo(d.dtype).tiny)
            # ``own`` is the pseudo-count: one of each class that has its own label
            of_label = own.index_add(0, y, r)
            total = of_label.sum(0) + others
            of_label /= total
            t = _newton(t, p, r, finite, squared)
        # shares that EM has all but given up fall towards 0 for ever, to subnormal numbers
        seen = without_rounding(of_label.mT, 1.0).contiguous()
        if n_classes > SQUARE:
            return cls(t, log_share, seen, told)
        return cls(t, log_share, torch.diag(others / total).index_copy_(1, told, seen))

    def probabilities(self, distances: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return p(y | u); distances may lack a number that all classes of a row share."""
        p = torch.softmax(-self.strength / 2 * distances + self.log_share, 1)
        if not len(self.told):
            return p @ self.channel
        own = (1 - self.channel.sum(1)).clamp_min(0)  # Q[y, y] of the other labels
        return (p * own).index_copy_(1, self.told, p @ self.channel)

    def ambiguity(self, distances: Float[Tensor, "B C"]) -> Float[Tensor, " B"]:
        """Return the entropy of p(y | u)."""
        return torch.special.entr(self.probabilities(distances)).sum(1).clamp_min(0)


def points_of(n_classes: int) -> int:
    """Return the number of points that EM goes through, at most, for this many classes.

    Examples
    --------
    >>> points_of(1_024), points_of(100_000)
    (1024, 100)
    """
    return max(FEWEST, CELLS // n_classes)


def _newton(t: Tensor, p: Tensor, r: Tensor, d: Tensor, squared: Tensor) -> Tensor:
    """Take one Newton step of t on sum_nc r_nc log p_nc + log t - t, at most by a factor of 2.

    ``squared`` is d^2, which all steps share.
    """
    # log p_nc = -t/2 d_nc - log sum_k e^(-t/2 d_nk + ..): its slope in t is (E_p d - d_nc) / 2, and
    # the slope of E_p d is -Var_p(d) / 2, so that the curvature is sum_n Var_p(d) / 4 + 1 / t^2
    mean = (p * d).sum(1)
    slope = (mean.sum() - torch.dot(r.flatten(), d.flatten())) / 2 + 1 / t - 1
    spread = torch.dot(p.flatten(), squared.flatten()) - mean.square().sum()  # sum_n Var_p(d)
    curvature = spread.clamp_min(0) / 4 + 1 / t.square()
    return (t + slope / curvature).clamp(t / 2, 2 * t)
