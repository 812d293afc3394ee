"""Vote of the labels of the V = 20 nearest items of a query.

With d_j the distance of the j-th neighbour, a the least and b the largest of them, and l_j its
label (an engine may rank by something else than this distance, so that d_1 need not be the least),

    w_j        = exp(-(d_j^2 - a^2) / max(b^2 - a^2, 1e-4 b^2)), divided by their sum: where all
                 are equally far, rounding has no weight
    p_c        = sum_{j : l_j = c} w_j                   kernel label posterior (Kotelevskii et al.
                                                         2022, NUQ), one scale a query
    ambiguity  = -sum_c p_c log p_c                      in nats, between 0 and log V
    share_i    = #{j : l_j = l_i} / V
    weighted_i = p of l_i
    ratio_i    = d_i / (d_i + min{d_j : l_j != l_i})     in [0, 1]; after the ratio test of Lowe
                                                         2004, with b where all labels agree

The last three are evidence that neighbour i shares the query's label. They also stand for
neighbours beyond V, which have no vote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from laplace_metric.calibration._array_namespace import namespace
from laplace_metric.errors import NonFiniteError

VOTES = 20
ROUNDING = 1e-12
"""Ambiguity, in nats, that is none."""
EQUALLY_FAR = 1e-4
"""Part of the largest squared distance within which voters weigh nearly the same.

Squared distances of float32 are rounded by 1e-6 of their value, in another way on each machine.
"""
BLOCK_CELLS = 2**22
"""Of (query, neighbour, vote) triples that are compared at once."""


@dataclass(frozen=True)
class LabelVotes:
    """The evidence of Q queries and their K neighbours.

    Parameters
    ----------
    labels : [Q, K]
        Codes of the neighbours' labels, -1 where there is no neighbour.
    share, weighted, ratio : [Q, K], in [0, 1]
        Evidence that a neighbour shares the query's label: the share of voters with its label,
        their share weighted by distance, and the ratio of its distance to that of the nearest
        voter with another label.
    ambiguity : [Q]
        Entropy of the weighted vote, in nats from 0 to log 20.
    class_odds : [Q, K] or None
        Log odds of each neighbour's label by the class model of the gallery. None, the default,
        without one.
    """

    labels: Int[np.ndarray, "Q K"]
    share: Float[np.ndarray, "Q K"]
    weighted: Float[np.ndarray, "Q K"]
    ratio: Float[np.ndarray, "Q K"]
    ambiguity: Float[np.ndarray, " Q"]
    class_odds: Float[np.ndarray, "Q K"] | None = None

    @classmethod
    def of(cls, distance: Float[np.ndarray, "Q K"], labels: Int[np.ndarray, "Q K"]) -> LabelVotes:
        """Compute the evidence from distances and label codes.

        Parameters
        ----------
        distance : [Q, K]
            Distances in the order of the search, infinite where there is no neighbour. The first
            20 vote, whether or not they are sorted by this distance.
        labels : [Q, K]
            Codes of the neighbours' labels.

        Raises
        ------
        NonFiniteError
            For NaN among the distances.

        Examples
        --------
        >>> votes = LabelVotes.of(np.array([[1.0, 2.0, 2.0]]), np.array([[0, 1, 1]]))
        >>> votes.share.round(4), votes.ambiguity.round(4)
        (array([[0.3333, 0.6667, 0.6667]]), array([0.6815]))
        """
        distance = distance.astype(np.float64, copy=False)
        if (rows := np.isnan(distance).any(1)).any():
            raise NonFiniteError(
                f"distance holds NaN in row {rows.argmax()} ({rows.sum():,} rows): pass finite "
                "distances, and inf where there is no neighbour."
            )
        cells = max(1, distance.shape[1] * min(VOTES, distance.shape[1]))
        step = max(1, BLOCK_CELLS // cells)
        parts = [
            label_evidence(distance[i : i + step], labels[i : i + step])
            for i in range(0, max(1, len(distance)), step)
        ]
        share, weighted, ratio, ambiguity = map(np.concatenate, zip(*parts, strict=True))
        return cls(labels, share, weighted, ratio, ambiguity)


def label_evidence(distance: Any, labels: Any) -> tuple[Any, Any, Any, Any]:
    """Return share, weighted, ratio [Q, K] and ambiguity [Q]; float64 distances, any codes.

    The first ``VOTES`` neighbours vote, in any order. NaN gives NaN.
    """
    xp = namespace(distance)
    exists = ~xp.isinf(distance)
    near = xp.where(exists, distance, 0.0)
    voters, votes = near[:, :VOTES], exists[:, :VOTES]
    weight = _weights(voters, votes)
    agree = (labels[:, :, None] == labels[:, None, :VOTES]) & votes[:, None]  # [Q, K, V]
    share = (agree * xp.ones_like(weight)[:, None]).sum(2) / votes.sum(1)[:, None].clip(1)
    weighted = (agree * weight[:, None]).sum(2)
    others = xp.where(agree | ~votes[:, None], xp.inf, voters[:, None])
    other, last = xp.amin(others, 2), xp.amax(voters, 1)[:, None]
    other = xp.where(xp.isfinite(other), other, last)  # infinite if all agree
    both = near + other
    ratio = xp.where(both == 0, 0.5, near / xp.where(both == 0, 1.0, both))
    ambiguity = -(weight * xp.log(_or_one(weighted[:, :VOTES]))).sum(1)
    # where all agree it is 0, and its rounding would have a rank
    ambiguity = xp.where(ambiguity <= ROUNDING, 0.0, ambiguity)
    return share, weighted, xp.where(exists, ratio, 1.0), ambiguity


def _weights(voters: Any, exists: Any) -> Any:
    """Return w [Q, V]; 0 where there is no neighbour, equal where all are equally far."""
    xp, squared = namespace(voters), voters * voters
    least = xp.amin(xp.where(exists, squared, xp.inf), 1)[:, None]  # a ranking may put it anywhere
    excess = xp.where(exists, squared - least, 0.0)
    largest = xp.amax(xp.where(exists, squared, 0.0), 1)[:, None]
    reach = xp.maximum(xp.amax(excess, 1)[:, None], EQUALLY_FAR * largest)
    falling = xp.exp(-excess / _or_one(reach))
    weight = xp.where(exists, falling, 0.0)
    return weight / _or_one(weight.sum(1)[:, None])


def _or_one(x: Any) -> Any:
    """Return x, and 1 in the place of 0; a graph has no float64 smaller than float32's."""
    return namespace(x).where(x > 0, x, 1.0)
