"""What follows from equations alone: explicit concentration (2024) without a training.

Its loss of k, for directions that stand still and a cosine c of two views, a pair with weights
l_a (alignment) and l_r (regulariser R):

    L(k) = -2 l_a k c + 2 l_r R(k)

    eq. 6   R = k^2                          k = l_a c / (2 l_r)                        c > 0
    eq. 5   R = k - (d - 1)/2 log k          k = (d - 1)/2 l_r / (l_r - l_a c)          l_a c < l_r

so both are regressions of c, and eq. 5 has no minimum from c = l_r / l_a on: k grows without bound.

Its proposition 1: ``p(x_1) > p(x_2)`` of two von Mises-Fisher densities would imply the same of
``exp(k mu.x)``, without the normalisers. Their differential entropy (a baseline of table 1) falls
as kappa grows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from baselines.distributions import VonMisesFisher, log_vmf_normalizer
from benchmarks.engine.statistics import spearman

DIMENSION = 128
ALIGN, REGULARIZE = 0.05, 0.005
"""Weights of the paper."""
COSINES = -0.2, 1.0
"""Least and largest expected cosine of two views."""
POINTS, PAIRS = 2_001, 100_000
KAPPAS = 10.0, 200.0
Row = dict[str, Any]


def squared(cosine: Tensor, align: float = ALIGN, regularize: float = REGULARIZE) -> Tensor:
    """Return the minimum of eq. 6 for cosines [N]; 0 where the cosine is negative.

    Examples
    --------
    >>> squared(torch.tensor([-0.1, 0.5, 0.9]))
    tensor([0.0000, 2.5000, 4.5000])
    """
    return (align * cosine / (2 * regularize)).clamp_min(0)


def approximated(
    cosine: Tensor,
    align: float = ALIGN,
    regularize: float = REGULARIZE,
    dimension: int = DIMENSION,
) -> Tensor:
    """Return the minimum of eq. 5 for cosines [N]; infinity where there is none.

    Examples
    --------
    >>> approximated(torch.tensor([-0.1, 0.0, 0.05, 0.1]))
    tensor([ 31.7500,  63.5000, 127.0000,      inf])
    """
    slope = regularize - align * cosine
    least = (dimension - 1) / 2 * regularize / slope
    bounded = slope > 1e-6 * regularize  # the cosine l_r / l_a itself is no number of float32
    return torch.where(bounded, least, torch.full_like(cosine, float("inf")))


def regressions() -> list[Row]:
    """Return how the minima of both equations rank the cosine, and where they end."""
    cosine = torch.linspace(*COSINES, POINTS, dtype=torch.float64)
    found = []
    for name, minimum in (("eq. 5", approximated), ("eq. 6", squared)):
        k = minimum(cosine)
        inside = k.isfinite() & (k > 0)
        found.append(
            {
                "quantity": f"{name}, rank of k and cosine",
                "value": spearman(cosine[inside], k[inside]),
                "of": float(inside.double().mean()),
            }
        )
    without = cosine[approximated(cosine).isinf()]
    found.append({"quantity": "eq. 5, least cosine without a minimum", "value": float(without[0])})
    return found


def changed_order(seed: int = 0) -> Row:
    """Return the share of pairs of densities that proposition 1 orders wrongly.

    Directions are uniform, cosines to their points too, kappas between 10 and 200.
    """
    g = torch.Generator().manual_seed(seed)
    low, high = KAPPAS
    kappa = low + (high - low) * torch.rand(2, PAIRS, generator=g, dtype=torch.float64)
    cosine = 2 * torch.rand(2, PAIRS, generator=g, dtype=torch.float64) - 1
    exponent = kappa * cosine
    density = log_vmf_normalizer(kappa, DIMENSION) + exponent
    changed = (density[0] > density[1]) != (exponent[0] > exponent[1])
    return {"quantity": "proposition 1, share of pairs in another order",
            "value": float(changed.double().mean()), "of": PAIRS}  # fmt: skip


def entropy() -> Row:
    """Return the rank correlation of kappa and the differential entropy."""
    kappa = torch.logspace(0, 3, 200, dtype=torch.float64)
    mu = torch.eye(1, DIMENSION, dtype=torch.float64).expand(len(kappa), -1)
    value = spearman(kappa, VonMisesFisher(mu, kappa).entropy())
    return {"quantity": "differential entropy, rank with kappa", "value": value, "of": len(kappa)}


def rows() -> list[Row]:
    """Return a row for every number."""
    return [*regressions(), changed_order(), entropy()]
