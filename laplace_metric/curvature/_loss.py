"""The contrastive loss: a distance in a space, an approximation of its Hessian, and a margin."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import check_name, check_positive
from laplace_metric.curvature.by_class import Points, view_points
from laplace_metric.heads._jacobian import HeadJacobian

# The loss that is differentiated: a distance in a space, a GGN approximation, a margin.

SPHERE_DIAMETER = 2.0
DISTANCES = ("euclidean", "arccos")


@dataclass(frozen=True)
class Geometry:
    """A distance and the space it is measured in.

    Parameters
    ----------
    name : str
        Name of the geometry, part of the fingerprint of a fit.
    spherical : bool
        True if directions are compared (an l2-normalised network, or the arccos distance).
    curved_loss : bool
        True if the normalisation belongs to the loss (arccos), so its second derivative counts.
    """

    name: str
    spherical: bool
    curved_loss: bool

    def points_of(
        self, head: HeadJacobian, features: Float[Tensor, "n D"], *, checked: bool = True
    ) -> Points:
        """Return the points of a head's inputs, in the longer of the dtypes of inputs and head."""
        h = features.to(torch.promote_types(features.dtype, head.dtype))
        return view_points(h, head.forward(h), spherical=self.spherical, checked=checked)


RAW_EUCLIDEAN = Geometry("euclidean", spherical=False, curved_loss=False)
NORMALIZED_EUCLIDEAN = Geometry("euclidean on the sphere", spherical=True, curved_loss=False)
ARCCOS = Geometry("arccos", spherical=True, curved_loss=True)
APPROXIMATIONS = {"full": (True, True), "positives": (False, True), "fixed": (True, False)}
"""Parts of the Gauss-Newton matrix that are kept, (negatives, cross) (Warburg et al. 2023, F.3).

Equations 98, 99, and 101-102.
"""


@dataclass(frozen=True)
class ContrastiveLoss:
    """Contrastive loss whose curvature is computed: geometry, approximation and margin.

    Parameters
    ----------
    geometry : Geometry
        Distance, and the space it is measured in.
    negatives : bool
        True if negative pairs count.
    cross : bool
        True if the blocks count that couple the two points of a pair.
    margin : float or None
        Largest distance at which negative pairs count. None, the default: all of them do.

    Examples
    --------
    >>> loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    >>> loss.negatives_by_class
    True
    """

    geometry: Geometry
    negatives: bool
    cross: bool
    margin: float | None = None

    @classmethod
    def of(
        cls, distance: str, hessian: str, *, normalized: bool, margin: float | None = None
    ) -> ContrastiveLoss:
        """Return the loss with these public names.

        Parameters
        ----------
        distance : "euclidean" | "arccos"
            Distance of a pair: half the squared Euclidean distance, or ``1 - cos``.
        hessian : "full" | "positives" | "fixed"
            Part of the Gauss-Newton matrix that is kept: all of it, that of positive pairs, or its
            diagonal blocks.
        normalized : bool
            True if the network l2-normalises its output. Arccos compares directions in any case, so
            there it makes no difference.
        margin : float or None
            Largest distance at which negative pairs count; on the sphere a margin of 2 or more
            includes every pair and becomes None. None, the default: all of them count.

        Raises
        ------
        UnknownNameError
            If a name does not exist.
        InputError
            If the margin is not a positive number.
        """
        check_name("distance", distance, DISTANCES)
        check_name("hessian", hessian, APPROXIMATIONS)
        margin = None if margin is None else check_positive("margin", margin)
        space = NORMALIZED_EUCLIDEAN if normalized else RAW_EUCLIDEAN
        space = ARCCOS if distance == "arccos" else space
        if margin is not None and space.spherical and margin >= SPHERE_DIAMETER:
            margin = None
        negatives, cross = APPROXIMATIONS[hessian]
        return cls(space, negatives, cross, margin)

    @property
    def negatives_by_class(self) -> bool:
        """True if every negative pair counts, so that class sums are enough."""
        return self.negatives and self.margin is None

    @property
    def negatives_by_pair(self) -> bool:
        """True if only negatives inside a finite margin count: pairs are computed one by one."""
        return self.negatives and self.margin is not None

    @property
    def cancels(self) -> bool:
        """True if terms of H cancel, so that they are summed in float64.

        With cross blocks, or without the second derivative of a distance on the sphere, H sees
        differences: of features, whose common part cancels (all of it for the bias of a raw
        head, an exact null direction), or of the weights w_i, whose sum is zero. What rounding
        leaves there, times n_effective, would rival the prior precision. Only ``fixed`` with
        ``arccos`` has neither.
        """
        return self.cross or not self.geometry.curved_loss

    @property
    def vanishes(self) -> bool:
        """True if H is zero for balanced classes: fixed, no second derivative, all negatives."""
        return self.negatives_by_class and not self.cross and not self.geometry.curved_loss
