"""The three approximations of the contrastive Hessian: which pairs and which blocks count."""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric.errors import UnknownNameError


@dataclass(frozen=True)
class Approximation:
    """Which part of the Gauss-Newton matrix over pairs is kept (Warburg et al. 2023, F.3).

    Parameters
    ----------
    negatives : bool
        Whether negative pairs count.
    cross : bool
        Whether the blocks that couple the two points of a pair count.
    """

    name: str
    negatives: bool
    cross: bool


FULL = Approximation("full", negatives=True, cross=True)  # eq 98
POSITIVES = Approximation("positives", negatives=False, cross=True)  # eq 99
FIXED = Approximation("fixed", negatives=True, cross=False)  # eqs 101-102

APPROXIMATIONS = {value.name: value for value in (FULL, POSITIVES, FIXED)}


def approximation(name: str) -> Approximation:
    """Look one up by its public name.

    Examples
    --------
    >>> approximation("fixed").cross
    False
    """
    if name not in APPROXIMATIONS:
        raise UnknownNameError("hessian", name, tuple(APPROXIMATIONS))
    return APPROXIMATIONS[name]
