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
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.precision import without_rounding

MOST_CLASSES = 2_048
"""Classes up to which there is a label model: its channel has the square of their number."""
ROUNDS = 30
START = 0.1
"""Share of the labels that are uniform before the first round of EM."""
CELLS = 2**20
"""Distances that EM goes through in a round; fewer points where classes are many."""


class LabelModel(NamedTuple):
    """Model that turns distances to classes into ambiguity.

    Parameters
    ----------
    strength : Tensor [1]
        Factor t of the distances.
    log_share : Tensor [C]
        Logarithm of the share of each class, log pi.
    channel : Tensor [C, C]
        Shares Q in which class c is labelled y; the rows sum to 1.

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
        """Fit to cross-fitted distances, infinite where a class is not known, and class sizes."""
        most = max(1, CELLS // len(counts))
        d, y = distances[:most], labels[:most]
        log_share = counts.to(d).log() - counts.sum().to(d).log()
        eye = torch.eye(len(counts), dtype=d.dtype, device=d.device)
        t, of_label = d.new_ones(1), (1 - START) * eye + START / len(counts)  # Q' [y, C]
        finite = d.masked_fill(d.isinf(), 0)
        squared = finite.square()
        for _ in range(ROUNDS):
            p = torch.softmax(-t / 2 * d + log_share, 1)  # p(c | u_n) [n, C]
            r = p * of_label[y]  # times Q[c, y_n]: r_nc before its rows sum to 1
            r /= r.sum(1, keepdim=True).clamp_min(torch.finfo(d.dtype).tiny)
            # the identity is the pseudo-count: one of each class that has its own label
            of_label = eye.index_add(0, y, r)
            of_label /= of_label.sum(0)
            t = _newton(t, p, r, finite, squared)
        # shares that EM has all but given up fall towards 0 for ever, to subnormal numbers
        return cls(t, log_share, without_rounding(of_label.mT, 1.0).contiguous())

    def probabilities(self, distances: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return p(y | u); distances may lack a number that all classes of a row share."""
        return torch.softmax(-self.strength / 2 * distances + self.log_share, 1) @ self.channel

    def ambiguity(self, distances: Float[Tensor, "B C"]) -> Float[Tensor, " B"]:
        """Return the entropy of p(y | u)."""
        return torch.special.entr(self.probabilities(distances)).sum(1).clamp_min(0)


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
