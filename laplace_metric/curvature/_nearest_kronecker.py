"""The nearest Kronecker product ``S (x) A`` of each layer's H, by power iteration.

``min |H - S (x) A|_F`` is the leading singular pair of the rearranged H (Van Loan and Pitsianis
1993); its power iteration alternates the two contractions of ``_layer_sums``

    S <- <H, A> / |<H, A>|        A <- <H, S>        from A = I, where <H, I> costs no product

The residual of a half step is known without forming H: ``|H - S (x) A|^2 = |H|^2 - |S (x) A|^2``,
so ``|A|`` and ``|<H, A>| / |A|`` can only grow, towards the leading singular value, and how much
they grow says when to stop. The pass that looks ahead, ``<H, A>``, also takes the exact
diag(Q^T H Q) in the eigenbasis of S (x) A, which replaces its eigenvalues (``_structures``): A is
diagonal there, so inputs that are rotated by Q_A give both.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._layer_sums import Diagonal, LeftOf, RightOf
from laplace_metric.curvature._layered_term import LayeredTerm
from laplace_metric.curvature._loss import ContrastiveLoss
from laplace_metric.curvature._passes import PassSchedule, Totals
from laplace_metric.curvature._structures import KronCurvature, KroneckerFactors, balanced
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._layout import Layout

MAX_STEPS = 30
TOLERANCE = 1e-3
"""Stop when the next half step would grow no layer's |S (x) A| by more than this share.

A step that grows it by less moves uncertainties by 2e-4 to 2e-3, and costs a third of a fit. One
step alone would move those of small, hard sets by a tenth.
"""


def nearest_kronecker(
    totals: Totals, head: HeadJacobian, loss: ContrastiveLoss, *, refine: bool = True
) -> PassSchedule[KronCurvature]:
    """Compute ``S (x) A`` of each layer, refined by the exact diagonal in its eigenbasis.

    One step on trained heads for ``hessian="fixed"``, two with cross blocks; each takes two
    passes of O(N (A^2 + O^2)), of which one is half a symmetric product; with cross blocks
    O(N Z O A + C Z O A (O + A)) more, C the number of classes. Memory O(O^2 + A^2) and a tile.
    A raw linear head has ``S = s I``.

    Parameters
    ----------
    totals : Totals
        Passes that return the totals of any term over the pairs in question.
    head : HeadJacobian
        Jacobian of a chain of linear layers.
    loss : ContrastiveLoss
        Loss that is differentiated.
    refine : bool
        Replace the eigenvalues of the product by the exact diagonal in its eigenbasis.
    """
    layouts, spherical = head.layouts, loss.geometry.spherical
    left = yield from totals(LayeredTerm(head, spherical, [LeftOf()] * len(layouts)))
    for _ in range(MAX_STEPS):
        left = [m / m.norm().clamp_min(torch.finfo(m.dtype).tiny) for m in left]
        upper = yield from totals(LayeredTerm(head, spherical, list(map(RightOf, left))))
        right = list(map(mirrored, upper))
        product = KronCurvature(tuple(map(_factors, left, right, layouts)))
        basis, _ = product.eigenbasis(head.parameters.dtype)
        # diag(Q^T A Q) of A's own eigenvectors: its eigenvalues, in their order
        values = [
            ((a @ b.right) * b.right).sum(0) for a, b in zip(right, basis.blocks, strict=True)
        ]
        diagonals, lefts = [Diagonal()] * len(layouts), list(map(LeftOf, values))
        ahead = yield from totals(LayeredTerm(head, spherical, diagonals, lefts, basis=basis))
        spectra, seen = ahead[: len(layouts)], ahead[len(layouts) :]
        sizes = [(s.norm().cpu(), a.norm().cpu()) for s, a in zip(seen, right, strict=True)]
        if all(bool(s <= (1 + TOLERANCE) * a.square()) for s, a in sizes):
            break
        left = [_turned_back(s, b.left) for s, b in zip(seen, basis.blocks, strict=True)]
    if not refine:
        return product
    wide = [x.expand(layout.n_outputs, -1) for x, layout in zip(spectra, layouts, strict=True)]
    return KronCurvature(product.factors, (basis, torch.cat([x.flatten() for x in wide])))


def mirrored(gram: Float[Tensor, "A A"]) -> Float[Tensor, "A A"]:
    """Return the symmetric matrix whose upper triangle is given.

    Examples
    --------
    >>> mirrored(torch.tensor([[1.0, 2.0], [9.0, 3.0]]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    return gram.triu() + gram.triu(1).mT


def _turned_back(seen: Tensor, basis: Tensor) -> Tensor:
    """Return ``Q S~ Q^T``; S [1, 1] of a raw linear head is the same in every basis."""
    return seen if len(seen) < len(basis) else basis @ seen @ basis.mT


def _factors(left: Tensor, right: Tensor, layout: Layout) -> KroneckerFactors:
    """Return factors of equal norm; S [1, 1] of a raw linear head becomes s I."""
    if len(left) == 1 < layout.n_outputs:
        left = left * torch.eye(layout.n_outputs).to(left)
    return KroneckerFactors(*balanced(left, right), layout)
