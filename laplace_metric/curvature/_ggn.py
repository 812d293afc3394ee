"""The contrastive Gauss-Newton curvature of a head: every kind of pairs x every structure.

The nearest Kronecker product ``S (x) A``, ``min |H - S (x) A|_F``, is the leading singular pair of
the rearranged H (Van Loan and Pitsianis 1993); its power iteration alternates the two contractions
of ``_terms``

    S <- <H, A> / |<H, A>|        A <- <H, S>        from A = I, where <H, I> costs no product

The residual of a half step is known without forming H: ``|H - S (x) A|^2 = |H|^2 - |S (x) A|^2``,
so ``|A|`` and ``|<H, A>| / |A|`` can only grow, towards the leading singular value, and how much
they grow says when to stop. The pass that looks ahead, ``<H, A>``, also takes the exact
diag(Q^T H Q) in the eigenbasis of S (x) A, which replaces its eigenvalues (``_structures``): A is
diagonal there, so inputs that are rotated by Q_A give both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.randomness import Seed
from laplace_metric.curvature._margin import (
    MarginPairWeights,
    PairWeights,
    column_groups,
    mined_pair_weights,
)
from laplace_metric.curvature._passes import (
    ClassesPass,
    ClassSumsPass,
    PassSchedule,
    PointsPass,
    class_chunks,
    execute,
)
from laplace_metric.curvature._structures import (
    Curvature,
    DiagCurvature,
    FullCurvature,
    KronCurvature,
    KroneckerFactors,
    balanced,
    check_memory,
)
from laplace_metric.curvature._terms import (
    ContrastiveLoss,
    CurvatureTerm,
    DenseTerm,
    Diagonal,
    DiagonalTerm,
    LayeredTerm,
    LeftOf,
    LinearDense,
    RightOf,
    Tile,
    add_terms,
)
from laplace_metric.curvature.by_class import ClassPairWeights, ClassSums, PointBlocks, Points
from laplace_metric.errors import InputError, LabelError
from laplace_metric.heads._jacobian import HeadJacobian, Layout, LinearJacobian
from laplace_metric.models._store import FeatureStore

Totals = Callable[[CurvatureTerm], PassSchedule[list[Tensor]]]
"""A term over some pairs."""
MAX_STEPS = 30
TOLERANCE = 5e-4
"""Stop when the next half step would grow no layer's |S (x) A| by more than this share."""


def all_pairs_curvature(
    source: FeatureStore,
    head: HeadJacobian,
    loss: ContrastiveLoss,
    structure: str = "diag",
    *,
    reference: int | None = None,
    generator: Seed = None,
    progress: bool = False,
) -> Curvature:
    """H of every ordered pair of the points, before the positivity step.

    Parameters
    ----------
    structure : "diag" | "kron" | "full"
    reference : int or None
        With a finite margin: estimate in-margin negatives from this many random points; the
        diagonal then has its standard error.

    Raises
    ------
    LabelError
        If all points have one class: without negatives nothing is contrasted.
    HeadError, MemoryLimitError
        If the head has no such structure, or it would not fit the memory.

    Examples
    --------
    >>> store = FeatureStore.of(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2]))
    >>> head = LinearJacobian(torch.randn(3, 4), torch.zeros(3))
    >>> loss = ContrastiveLoss.of("arccos", "full", normalized=False)
    >>> all_pairs_curvature(store, head, loss).values.shape
    torch.Size([15])
    """
    check_memory(structure, head.layouts, source.device)
    columns = margin_columns(source, loss, structure, reference, generator)
    schedule = curvature_passes(head, loss, structure, columns)
    return execute(schedule, source, progress=progress)


def margin_columns(
    source: FeatureStore,
    loss: ContrastiveLoss,
    structure: str,
    reference: int | None = None,
    generator: Seed = None,
) -> list[FeatureStore]:
    """Return the points among which in-margin negatives are searched: none, all, or some."""
    if not loss.negatives_by_pair:
        return []
    if reference is None:
        return [source]
    groups = column_groups(len(source), structure, reference, generator)
    labels = source.labels
    return [FeatureStore.of(source.rows(g), labels[g.to(labels.device)]) for g in groups]


def curvature_passes(
    head: HeadJacobian,
    loss: ContrastiveLoss,
    structure: str,
    columns: Sequence[FeatureStore] = (),
) -> PassSchedule[Curvature]:
    """The passes of a fit: class sums, then those of the structure.

    The diagonal takes two passes; the Kronecker structure two, and two for each step of its power
    iteration (one step, or two with cross blocks); cross blocks one more for each of these and
    each tile of G_c.

    Parameters
    ----------
    columns : for a finite margin, groups of points that stand for all

    Raises
    ------
    LabelError
        If all points have one class.
    """
    if loss.cancels:
        head = head.to(torch.float64)
    sums = (yield ClassSumsPass(head, loss.geometry)).by_class
    if len(sums.classes) < 2:
        raise LabelError(
            f"all {sums.n_points} items have one label: pass items of at least two classes."
        )
    pairs = AllPairs(head, loss, sums, columns)
    if len(pairs.margins) > 1:
        return (yield from _with_standard_error(pairs))
    return (yield from _in_structure(pairs.totals, head, loss, structure))


@dataclass(frozen=True)
class AllPairs:
    """Every pair of the points that is by class or inside the margin.

    Parameters
    ----------
    class_sums : ClassSums
        Of all points.
    columns : groups of points that stand for all inside a margin
    """

    head: HeadJacobian
    loss: ContrastiveLoss
    class_sums: ClassSums
    columns: Sequence[FeatureStore] = ()

    @cached_property
    def by_class(self) -> ClassPairWeights:
        """Weights of the pairs that class sums are enough for."""
        return ClassPairWeights(self.class_sums, self.loss.negatives_by_class)

    @cached_property
    def margins(self) -> list[MarginPairWeights]:
        """Weights of the pairs inside the margin, for each group of columns."""
        sums = self.class_sums
        return [MarginPairWeights(self.head, self.loss, part, sums) for part in self.columns]

    def totals(self, term: CurvatureTerm) -> PassSchedule[list[Tensor]]:
        """One pass over the points; for cross blocks by class, one a tile and chunk of classes."""
        (totals,) = yield from self._passes(term, ((self.by_class, *self.margins),))
        return totals

    def totals_by_group(self, term: CurvatureTerm) -> PassSchedule[list[list[Tensor]]]:
        """The same pass; totals of the pairs by class, then of each group of columns."""
        groups = tuple((margin,) for margin in self.margins)
        return (yield from self._passes(term, ((self.by_class,), *groups)))

    def _passes(
        self, term: CurvatureTerm, pair_weights: tuple[tuple[PairWeights, ...], ...]
    ) -> PassSchedule[list[list[Tensor]]]:
        space, sums = self.loss.geometry, self.class_sums
        over_points = PointsPass(self.head, space, sums, term, pair_weights=pair_weights)
        finished = yield over_points
        totals = [list(part) for part in over_points.split(finished.totals)]
        if self.loss.cross:
            for tile in term.tiles():
                yield from self._cross(term, tile, totals[0])
        return totals

    def _cross(self, term: CurvatureTerm, tile: Tile, totals: list[Tensor]) -> PassSchedule[None]:
        """``-2 ((1/P + b) sum_c G_c^T G_c - b G^T G)`` of a tile, in place."""
        (within, between), overall = self.by_class.within_and_between, None
        for classes in class_chunks(self.class_sums, tile):
            finished = yield ClassesPass(self.head, self.loss.geometry, classes, term, tile=tile)
            *products, g = finished.totals
            add_terms(totals, list(products), -2 * within)
            overall = g if overall is None else overall + g
        if overall is not None and between:
            add_terms(totals, term.classes(tile, overall[None]), 2 * between)


def _in_structure(
    totals: Totals, head: HeadJacobian, loss: ContrastiveLoss, structure: str
) -> PassSchedule[Curvature]:
    """H of some pairs, whose totals of any term are known."""
    if structure == "diag":
        diagonal = _diagonal_of(head, loss)
        return DiagCurvature(_in_order((yield from totals(diagonal)), head))
    if structure == "kron":
        return (yield from nearest_kronecker(totals, head, loss))
    term = LinearDense(head) if isinstance(head, LinearJacobian) else DenseTerm(head)
    (matrix,) = yield from totals(term)
    return FullCurvature((matrix + matrix.mT) / 2)


def _diagonal_of(head: HeadJacobian, loss: ContrastiveLoss) -> CurvatureTerm:
    if not head.layered:
        return DiagonalTerm(head)
    return LayeredTerm(head, loss.geometry.spherical, [Diagonal()] * len(head.layouts))


def _in_order(totals: Sequence[Tensor], head: HeadJacobian) -> Tensor:
    """diag(H) [P] in parameter order; a raw linear head's rows are alike."""
    parts = zip(totals, head.layouts, strict=True)
    return torch.cat([x.flatten(total.expand(x.n_outputs, -1)) for total, x in parts])


def _with_standard_error(pairs: AllPairs) -> PassSchedule[DiagCurvature]:
    """The mean over disjoint groups of columns, with the finite-population factor in its error."""
    parts = yield from pairs.totals_by_group(_diagonal_of(pairs.head, pairs.loss))
    by_class, *estimates = (_in_order(totals, pairs.head) for totals in parts)
    stacked = torch.stack(estimates)
    spread = stacked.std(0) / len(stacked) ** 0.5
    share = sum(map(len, pairs.columns)) / pairs.class_sums.n_points
    return DiagCurvature(by_class + stacked.mean(0), spread * max(0.0, 1 - share) ** 0.5)


def nearest_kronecker(
    totals: Totals, head: HeadJacobian, loss: ContrastiveLoss, *, refine: bool = True
) -> PassSchedule[KronCurvature]:
    """``S (x) A`` of each layer, refined by the exact diagonal in its eigenbasis.

    One step on trained heads for ``hessian="fixed"``, two with cross blocks; each takes two
    passes of O(N (A^2 + O^2)), of which one is half a symmetric product; with cross blocks
    O(N Z O A + C Z O A (O + A)) more, C the number of classes. Memory O(O^2 + A^2) and a tile.
    A raw linear head has ``S = s I``.
    """
    layouts, spherical = head.layouts, loss.geometry.spherical
    left = yield from totals(LayeredTerm(head, spherical, [LeftOf()] * len(layouts)))
    for _ in range(MAX_STEPS):
        left = [m / m.norm().clamp_min(torch.finfo(m.dtype).tiny) for m in left]
        upper = yield from totals(LayeredTerm(head, spherical, list(map(RightOf, left))))
        right = list(map(mirrored, upper))
        product = KronCurvature(tuple(map(_factors, left, right, layouts)))
        basis, _ = product.eigenbasis()
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
    """The symmetric matrix of which this is the upper triangle.

    Examples
    --------
    >>> mirrored(torch.tensor([[1.0, 2.0], [9.0, 3.0]]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    return gram.triu() + gram.triu(1).mT


def _turned_back(seen: Tensor, basis: Tensor) -> Tensor:
    """``Q S~ Q^T``; a raw linear head's S [1, 1] is the same in every basis."""
    return seen if len(seen) < len(basis) else basis @ seen @ basis.mT


def _factors(left: Tensor, right: Tensor, layout: Layout) -> KroneckerFactors:
    """Equal norms; a raw linear head's S [1, 1] becomes s I."""
    if len(left) == 1 < layout.n_outputs:
        left = left * torch.eye(layout.n_outputs).to(left)
    return KroneckerFactors(*balanced(left, right), layout)


def batch_curvature(
    features: Float[Tensor, "B D"],
    head: HeadJacobian,
    loss: ContrastiveLoss,
    structure: str = "diag",
    *,
    labels: Int[Tensor, " B"] | None = None,
    indices_tuple: Any = None,
) -> Curvature:
    """H of one minibatch, from all its pairs or from a miner's tuples.

    Positive and negative pairs are scaled separately, ``1/|B_pos|`` and ``-1/|B_neg|``, which is
    the paper's y^B with its factor |D^2|/|B|: an estimate of the all-pairs curvature.

    Parameters
    ----------
    features : inputs of the head
    labels : for all pairs of the batch
    indices_tuple : pairs or triplets of a pytorch-metric-learning miner, instead of labels

    Raises
    ------
    InputError
        Unless exactly one of ``labels`` and ``indices_tuple`` is given.
    """
    if (labels is None) == (indices_tuple is None):
        raise InputError("pass exactly one of labels and indices_tuple.")
    if labels is not None:
        return all_pairs_curvature(FeatureStore.of(features, labels), head, loss, structure)
    check_memory(structure, head.layouts, features.device)
    if loss.cancels:
        head = head.to(torch.float64)
    points = loss.geometry.points_of(head, features)
    y = mined_pair_weights(indices_tuple, points.coordinates, loss.margin, negatives=loss.negatives)
    pairs = MinedPairs(points, loss, y)
    unread = FeatureStore.of(features, torch.zeros(len(features), dtype=torch.int64))
    return execute(_in_structure(pairs.totals, head, loss, structure), unread)


@dataclass(frozen=True)
class MinedPairs:
    """Pairs of the points of one batch, with symmetric weights Y [B, B]."""

    points: Points
    loss: ContrastiveLoss
    weights: Tensor

    def totals(self, term: CurvatureTerm) -> PassSchedule[list[Tensor]]:
        """``w_i = sum_j y_ij`` and ``m_i = sum_j y_ij u_j`` by one product; no pass is needed."""
        yield from ()
        u, y = self.points.directions, self.weights
        totals = term.zeros()
        curved = self.loss.geometry.curved_loss
        blocks = PointBlocks.of(u, y.sum(1), y @ u, curved_loss=curved)
        add_terms(totals, term.points(self.points, blocks))
        if self.loss.cross:
            add_terms(totals, term.pairs(self.points, self.points, y))
        return totals
