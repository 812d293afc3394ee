"""What the labels of the nearest items say of a query: a vote of V = 20.

With d_1 <= ... <= d_V the distances of the nearest items and l_j their labels,

    w_j        = exp(-(d_j^2 - d_1^2) / (d_V^2 - d_1^2)), divided by their sum
    p_c        = sum_{j : l_j = c} w_j                   kernel label posterior (Kotelevskii et al.
                                                         2022, NUQ), one scale a query
    ambiguity  = -sum_c p_c log p_c                      in nats, between 0 and log V
    share_i    = #{j : l_j = l_i} / V
    weighted_i = p of l_i
    ratio_i    = d_i / (d_i + min{d_j : l_j != l_i})     in [0, 1]; after the ratio test of Lowe
                                                         2004, with d_V where all labels agree

The last three are evidence that neighbour i shares the query's label. They also stand for
neighbours beyond V, which have no vote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

VOTES = 20
BLOCK_CELLS = 2**24
"""Of (query, neighbour, vote) triples that are compared at once."""


@dataclass(frozen=True)
class LabelVotes:
    """The evidence of Q queries and their K neighbours, float64.

    Parameters
    ----------
    labels : Tensor [Q, K]
        Codes of the neighbours' labels, -1 where there is no neighbour.
    share, weighted, ratio : Tensor [Q, K], in [0, 1]
    ambiguity : Tensor [Q]
    """

    labels: Int[Tensor, "Q K"]
    share: Float[Tensor, "Q K"]
    weighted: Float[Tensor, "Q K"]
    ratio: Float[Tensor, "Q K"]
    ambiguity: Float[Tensor, " Q"]

    @classmethod
    def of(cls, distance: Float[Tensor, "Q K"], labels: Int[Tensor, "Q K"]) -> LabelVotes:
        """From distances, nearest first and infinite where there is no neighbour, and label codes.

        Examples
        --------
        >>> votes = LabelVotes.of(torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[0, 1, 1]]))
        >>> votes.share, votes.ambiguity
        (tensor([[0.3333, 0.6667, 0.6667]], dtype=torch.float64), tensor([0.6815], \
dtype=torch.float64))
        """
        cells = max(1, distance.shape[1] * min(VOTES, distance.shape[1]))
        step = max(1, BLOCK_CELLS // cells)
        parts = [
            _evidence(distance[i : i + step].double(), labels[i : i + step])
            for i in range(0, max(1, len(distance)), step)
        ]
        share, weighted, ratio, ambiguity = map(torch.cat, zip(*parts, strict=True))
        return cls(labels, share, weighted, ratio, ambiguity)

    @classmethod
    def in_one_block(cls, distance: Float[Tensor, "Q K"], labels: Int[Tensor, "Q K"]) -> LabelVotes:
        """The same, of any Q: what a graph is traced from."""
        return cls(labels, *_evidence(distance.double(), labels))

    def at(self, pairs: Any, rows: Any) -> LabelVotes:
        """Those of some ``pairs`` (an index of [Q, K]) and ``rows`` (of [Q]); no new vote."""
        labels, share, weighted = self.labels[pairs], self.share[pairs], self.weighted[pairs]
        return LabelVotes(labels, share, weighted, self.ratio[pairs], self.ambiguity[rows])


def _evidence(distance: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    voters, exists = distance[:, :VOTES], distance[:, :VOTES].isfinite()
    weight = _weights(voters, exists)
    agree = (labels[:, :, None] == labels[:, None, :VOTES]) & exists[:, None]  # [Q, K, V]
    share = agree.double().sum(2) / exists.sum(1, keepdim=True).clamp_min(1)
    weighted = (agree * weight[:, None]).sum(2)
    last = voters.masked_fill(~exists, 0).amax(1, keepdim=True)
    other = voters[:, None].masked_fill(agree, torch.inf).amin(2)  # infinite if all agree
    other = torch.where(other.isfinite(), other, last)
    both = distance + other
    ratio = torch.where(both > 0, distance / both, 0.5).nan_to_num(1.0)
    ambiguity = -(weight * _or_one(weighted[:, :VOTES]).log()).sum(1)
    return share, weighted, ratio, ambiguity.abs()  # never below 0 but by rounding


def _weights(voters: Tensor, exists: Tensor) -> Tensor:
    """w [Q, V]; 0 where there is no neighbour, equal where all are equally far."""
    squared = voters.masked_fill(~exists, 0).square()
    excess = squared - squared[:, :1]
    reach = excess.amax(1, keepdim=True)
    falling = torch.where(reach > 0, (-excess / _or_one(reach)).exp(), 1.0)
    weight = falling.masked_fill(~exists, 0)
    return weight / _or_one(weight.sum(1, keepdim=True))


def _or_one(x: Tensor) -> Tensor:
    """x, and 1 where there is nothing; a graph has no float64 smaller than float32's."""
    return torch.where(x > 0, x, 1.0)
