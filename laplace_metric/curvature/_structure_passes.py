"""The passes that compute H in each structure, given the totals of any term over some pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laplace_metric.curvature._jacobian_terms import DenseTerm, DiagonalTerm, LinearDense
from laplace_metric.curvature._layer_sums import Diagonal
from laplace_metric.curvature._layered_term import LayeredTerm
from laplace_metric.curvature._loss import ContrastiveLoss
from laplace_metric.curvature._nearest_kronecker import nearest_kronecker
from laplace_metric.curvature._schedule import PassSchedule, Totals
from laplace_metric.curvature._structures import Curvature, DiagCurvature, FullCurvature
from laplace_metric.curvature._terms import CurvatureTerm
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._linear import LinearJacobian


def in_structure(
    totals: Totals, head: HeadJacobian, loss: ContrastiveLoss, structure: str
) -> PassSchedule[Curvature]:
    """Compute H of some pairs in a structure.

    Parameters
    ----------
    totals : Totals
        Passes that return the totals of any term over these pairs.
    head : HeadJacobian
        Jacobian of the head.
    loss : ContrastiveLoss
        Loss that is differentiated.
    structure : "diag" | "kron" | "full"
        Structure of H.
    """
    if structure == "diag":
        diagonal = diagonal_term(head, loss)
        return DiagCurvature(in_parameter_order((yield from totals(diagonal)), head))
    if structure == "kron":
        return (yield from nearest_kronecker(totals, head, loss))
    term = LinearDense(head) if isinstance(head, LinearJacobian) else DenseTerm(head)
    (matrix,) = yield from totals(term)
    return FullCurvature((matrix + matrix.mT) / 2)


def diagonal_term(head: HeadJacobian, loss: ContrastiveLoss) -> CurvatureTerm:
    """Return the term whose totals are diag(H) of each layer, or of the whole head."""
    if not head.layered:
        return DiagonalTerm(head)
    return LayeredTerm(head, loss.geometry.spherical, [Diagonal()] * len(head.layouts))


def in_parameter_order(totals: Sequence[Tensor], head: HeadJacobian) -> Tensor:
    """Return diag(H) [P] in parameter order; all rows of a raw linear head are equal."""
    parts = zip(totals, head.layouts, strict=True)
    return torch.cat([x.flatten(total.expand(x.n_outputs, -1)) for total, x in parts])
