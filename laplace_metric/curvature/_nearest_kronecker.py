"""The nearest Kronecker product ``S (x) A`` of the contrastive curvature, by power iteration.

``min |H - S (x) A|_F`` is the leading singular pair of the rearranged H (Van Loan and Pitsianis
1993); its power iteration alternates the two contractions of ``terms``

    S <- <H, A> / |<H, A>|        A <- <H, S>        from A = I, where <H, I> costs no product

The residual of a half step is known without forming H: ``|H - S (x) A|^2 = |H|^2 - |S (x) A|^2``,
so ``|A|`` and ``|<H, A>| / |A|`` can only grow, towards the leading singular value, and how much
they grow says when to stop. The pass that looks ahead, ``<H, A>``, also takes the exact
diag(Q^T H Q) in the eigenbasis of S (x) A, which replaces its eigenvalues (see ``structures``):
inputs that are rotated by Q_A give both.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from laplace_metric.curvature.passes import PassSchedule
from laplace_metric.curvature.structures import KronCurvature, KroneckerFactors, balanced
from laplace_metric.curvature.terms import (
    CurvatureTerm,
    KroneckerRefinement,
    LeftContraction,
    RightContraction,
)
from laplace_metric.models.jacobians import HeadJacobian, Layout

Totals = Callable[[CurvatureTerm], PassSchedule[list[Tensor]]]
"""A term over some pairs."""

MAX_STEPS = 30
TOLERANCE = 5e-4
"""Stop when the next half step would grow no layer's |S (x) A| by more than this share."""


def nearest_kronecker(
    totals: Totals, head: HeadJacobian, n_rows: int, *, refine: bool = True
) -> PassSchedule[KronCurvature]:
    """``S (x) A`` of each layer, refined by the exact diagonal in its eigenbasis.

    One step on trained heads for ``hessian="fixed"``, two with cross blocks; each takes two
    passes of O(N (A^2 + O^2)), of which one is half a symmetric product; with cross blocks
    O(N Z O A + C Z O A (O + A)) more, C the number of classes. Memory O(O^2 + A^2) and a tile.

    Parameters
    ----------
    n_rows : int
        K of the geometry; a raw linear head has K = 1 and ``S = s I``.
    """
    layouts = head.layouts
    left = yield from totals(LeftContraction(head, n_rows, [None] * len(layouts)))
    for _ in range(MAX_STEPS):
        left = [m / m.norm().clamp_min(torch.finfo(m.dtype).tiny) for m in left]
        to_right = RightContraction(head, n_rows, left)
        right = to_right.result((yield from totals(to_right)))
        factors = [_factors(s, a, x) for s, a, x in zip(left, right, layouts, strict=True)]
        product = KronCurvature(tuple(factors))
        basis, _ = product.eigenbasis()
        blocks = basis.blocks
        values = [_values(a, b.right) for a, b in zip(right, blocks, strict=True)]
        ahead = KroneckerRefinement(head, n_rows, basis, values)
        spectrum, seen = ahead.result((yield from totals(ahead)))
        sizes = [(s.norm().cpu(), a.norm().cpu()) for s, a in zip(seen, right, strict=True)]
        if all(bool(s <= (1 + TOLERANCE) * a.square()) for s, a in sizes):
            break
        left = [_turned_back(s, b.left) for s, b in zip(seen, blocks, strict=True)]
    return KronCurvature(product.factors, (basis, spectrum.values) if refine else None)


def _values(matrix: Tensor, basis: Tensor) -> Tensor:
    """diag(Q^T A Q) [A], of A's own eigenvectors: its eigenvalues, in their order."""
    return ((matrix @ basis) * basis).sum(0)


def _turned_back(seen: Tensor, basis: Tensor) -> Tensor:
    """``Q S~ Q^T``; a raw linear head's S [1, 1] is the same in every basis."""
    return seen if len(seen) < len(basis) else basis @ seen @ basis.mT


def _factors(left: Tensor, right: Tensor, layout: Layout) -> KroneckerFactors:
    """Equal norms; a raw linear head's S [1, 1] becomes s I."""
    if len(left) == 1 < layout.n_outputs:
        left = left * torch.eye(layout.n_outputs).to(left)
    return KroneckerFactors(*balanced(left, right), layout)
