"""The nearest Kronecker product ``S (x) A`` of the contrastive curvature, by power iteration.

``min |H - S (x) A|_F`` is the leading singular pair of the rearranged H (Van Loan and Pitsianis
1993); its power iteration alternates the two contractions of ``terms``

    S <- <H, A> / |A|^2        A <- <H, S> / |S|^2

each one pass over the points. The residual of a step is known without forming H:
``|H - S (x) A|^2 = |H|^2 - |S (x) A|^2``, so the product's norm can only grow, and its growth says
when to stop. Then the exact diag(Q^T H Q) in the product's eigenbasis replaces its eigenvalues
(one more pass; see ``structures``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laplace_metric.curvature.passes import PassSchedule
from laplace_metric.curvature.structures import KronCurvature, KroneckerFactors, balanced
from laplace_metric.curvature.terms import (
    CurvatureTerm,
    LayeredDiagonal,
    LeftContraction,
    RightContraction,
)
from laplace_metric.models.jacobians import HeadJacobian, Layout

Totals = Callable[[CurvatureTerm], PassSchedule[list[Tensor]]]
"""A term over some pairs."""

MAX_STEPS = 30
TOLERANCE = 1e-3
"""Stop when no layer's |S (x) A| grows by more than this share."""


def nearest_kronecker(
    totals: Totals, head: HeadJacobian, n_rows: int, *, refine: bool = True
) -> PassSchedule[KronCurvature]:
    """``S (x) A`` of each layer, refined by the exact diagonal in its eigenbasis.

    Two or three steps on trained heads, each two passes of O(N (A^2 + O^2)); with cross blocks
    O(N Z O A + C Z O A (O + A)) more, C the number of classes. Memory O(O^2 + A^2) and a tile.

    Parameters
    ----------
    n_rows : int
        K of the geometry; a raw linear head has K = 1 and ``S = s I``.
    """
    layouts, device = head.layouts, head.parameters.device
    right = [torch.eye(x.n_columns, dtype=torch.float64, device=device) for x in layouts]
    norms = torch.zeros(len(layouts), dtype=torch.float64)
    for _ in range(MAX_STEPS):
        left = _normalised((yield from totals(LeftContraction(head, n_rows, right))))
        right = yield from totals(RightContraction(head, n_rows, left))
        grown = torch.stack([a.norm().cpu() for a in right])  # |S (x) A|, as |S| = 1
        if bool((grown <= (1 + TOLERANCE) * norms).all()):
            break
        norms = grown
    factors = [_factors(s, a, x) for s, a, x in zip(left, right, layouts, strict=True)]
    product = KronCurvature(tuple(factors))
    return (yield from _refined(product, totals, head, n_rows)) if refine else product


def _normalised(matrices: Sequence[Tensor]) -> list[Tensor]:
    return [m / m.norm().clamp_min(torch.finfo(m.dtype).tiny) for m in matrices]


def _factors(left: Tensor, right: Tensor, layout: Layout) -> KroneckerFactors:
    """Equal norms; a raw linear head's S [1, 1] becomes s I."""
    if len(left) == 1 < layout.n_outputs:
        left = left * torch.eye(layout.n_outputs).to(left)
    return KroneckerFactors(*balanced(left, right), layout)


def _refined(
    product: KronCurvature, totals: Totals, head: HeadJacobian, n_rows: int
) -> PassSchedule[KronCurvature]:
    basis, _ = product.eigenbasis()
    term = LayeredDiagonal(head, n_rows, basis)
    spectrum = term.result((yield from totals(term))).values
    return KronCurvature(product.factors, (basis, spectrum))
