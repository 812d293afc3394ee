"""The three approximations of the contrastive Hessian: which pairs and which blocks count.

Which contrastive Hessian is meant: geometry x approximation x margin.
"""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric.curvature._geometry import Geometry, geometry
from laplace_metric.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class GGNApproximation:
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


FULL = GGNApproximation("full", negatives=True, cross=True)  # eq 98
POSITIVES = GGNApproximation("positives", negatives=False, cross=True)  # eq 99
FIXED = GGNApproximation("fixed", negatives=True, cross=False)  # eqs 101-102

APPROXIMATIONS = {value.name: value for value in (FULL, POSITIVES, FIXED)}


def approximation(name: str) -> GGNApproximation:
    """Look one up by its public name.

    Examples
    --------
    >>> approximation("fixed").cross
    False
    """
    if name not in APPROXIMATIONS:
        raise UnknownNameError("hessian", name, tuple(APPROXIMATIONS))
    return APPROXIMATIONS[name]


SPHERE_DIAMETER = 2.0


@dataclass(frozen=True)
class ContrastiveLoss:
    """Which contrastive Hessian is meant: geometry x approximation x margin.

    Examples
    --------
    >>> loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    >>> loss.negatives_by_class
    True
    """

    geometry: Geometry
    approximation: GGNApproximation
    margin: float | None = None

    @classmethod
    def of(
        cls, distance: str, hessian: str, *, normalized: bool, margin: float | None = None
    ) -> ContrastiveLoss:
        """From the public names; a margin that every pair of directions is inside becomes None."""
        space = geometry(distance, normalized=normalized)
        check_margin(margin)
        if margin is not None and space.spherical and margin >= SPHERE_DIAMETER:
            margin = None
        return cls(space, approximation(hessian), margin)

    @property
    def negatives_by_class(self) -> bool:
        """Every negative pair counts, so class sums are enough."""
        return self.approximation.negatives and self.margin is None

    @property
    def negatives_by_pair(self) -> bool:
        """Only negatives inside a finite margin count, so pairs must be looked at."""
        return self.approximation.negatives and self.margin is not None

    @property
    def vanishes(self) -> bool:
        """Zero for balanced classes: fixed, without second derivative, every negative counted."""
        return (
            self.negatives_by_class
            and not self.approximation.cross
            and not self.geometry.curved_loss
        )


def check_margin(margin: float | None) -> None:
    """Raise ``InputError`` unless margin is None or a finite positive number."""
    if margin is None:
        return
    if not isinstance(margin, (int, float)) or not 0 < margin < float("inf"):
        raise InputError(f"margin={margin!r}: pass a positive distance, or None for every pair.")
