"""The curvature of all pairs of points: by class sums, and pair by pair inside a finite margin.

The passes that compute H in each structure, given the totals of any term over some pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from laplace_metric._utils.randomness import Seed
from laplace_metric.curvature._curvature_term import CurvatureTerm, Tile
from laplace_metric.curvature._jacobian_terms import DenseTerm, DiagonalTerm, LinearDense
from laplace_metric.curvature._layer_sums import Diagonal
from laplace_metric.curvature._layered_term import LayeredTerm
from laplace_metric.curvature._loss import ContrastiveLoss
from laplace_metric.curvature._margin_pairs import MarginPairWeights, column_groups
from laplace_metric.curvature._nearest_kronecker import nearest_kronecker
from laplace_metric.curvature._passes import (
    ClassesPass,
    ClassSumsPass,
    PassSchedule,
    PointsPass,
    Totals,
    class_chunks,
    execute,
)
from laplace_metric.curvature._statistics import add_terms
from laplace_metric.curvature._structures import (
    Curvature,
    DiagCurvature,
    FullCurvature,
    check_memory,
)
from laplace_metric.curvature.by_class import ClassPairWeights, ClassSums, PairWeights
from laplace_metric.errors import LabelError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.models._feature_store import FeatureStore


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


def all_pairs_curvature(
    source: FeatureStore,
    head: HeadJacobian,
    loss: ContrastiveLoss,
    structure: str = "diag",
    *,
    reference: int | None = None,
    seed: Seed = None,
    progress: bool = False,
) -> Curvature:
    """Compute H of every ordered pair of the points, before the positivity step.

    Parameters
    ----------
    source : FeatureStore
        Inputs of the head and labels of all N points.
    head : HeadJacobian
        Jacobian of the head.
    loss : ContrastiveLoss
        Loss that is differentiated.
    structure : "diag" | "kron" | "full"
        Structure of H.
    reference : int or None
        Number of random points from which in-margin negatives are estimated, for a finite margin;
        the diagonal then has its standard error. None, the default: all points, exact.
    seed : torch.Generator, int or None
        Generator or seed of the choice of these points. None, the default: torch's global
        generator.
    progress : bool
        Show a bar for a pass of more than two seconds.

    Raises
    ------
    LabelError
        If all points have one class: without negatives nothing is contrasted.
    HeadError, MemoryLimitError
        If the head has no such structure, or it would not fit the memory.

    Examples
    --------
    >>> from laplace_metric.heads._linear import LinearJacobian
    >>> store = FeatureStore.of(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2]))
    >>> head = LinearJacobian(torch.randn(3, 4), torch.zeros(3))
    >>> loss = ContrastiveLoss.of("arccos", "full", normalized=False)
    >>> all_pairs_curvature(store, head, loss).values.shape
    torch.Size([15])
    """
    check_memory(structure, head.layouts, source.device)
    columns = margin_columns(source, loss, structure, reference, seed)
    schedule = curvature_passes(head, loss, structure, columns)
    return execute(schedule, source, progress=progress)


def margin_columns(
    source: FeatureStore,
    loss: ContrastiveLoss,
    structure: str,
    reference: int | None = None,
    seed: Seed = None,
) -> list[FeatureStore]:
    """Return groups of points among which in-margin negatives are searched: none, all, or some."""
    if not loss.negatives_by_pair:
        return []
    if reference is None:
        return [source]
    groups = column_groups(len(source), structure, reference, seed)
    labels = source.labels
    return [FeatureStore.of(source.rows(g), labels[g.to(labels.device)]) for g in groups]


def curvature_passes(
    head: HeadJacobian,
    loss: ContrastiveLoss,
    structure: str,
    columns: Sequence[FeatureStore] = (),
) -> PassSchedule[Curvature]:
    """Yield the passes of a fit: class sums, then those of the structure; return H.

    The diagonal takes two passes; the Kronecker structure two, and two for each step of its power
    iteration (one step, or two with cross blocks); cross blocks one more for each of these and
    each tile of G_c.

    Parameters
    ----------
    head : HeadJacobian
        Jacobian of the head.
    loss : ContrastiveLoss
        Loss that is differentiated.
    structure : "diag" | "kron" | "full"
        Structure of H.
    columns : sequence of FeatureStore
        Groups of points that stand for all points, for a finite margin. Empty otherwise.

    Raises
    ------
    LabelError
        If all points have one class.
    """
    if loss.cancels:
        head = head.to(torch.float64)
    sums = (yield ClassSumsPass(head, loss.geometry)).by_class
    if head.dtype != torch.float64 and sums.nearly_one_direction:
        head = head.to(torch.float64)
        sums = (yield ClassSumsPass(head, loss.geometry)).by_class
    if len(sums.classes) < 2:
        raise LabelError(
            f"all {sums.n_points} items have one label: pass items of at least two classes."
        )
    pairs = AllPairs(head, loss, sums, columns)
    if len(pairs.margins) > 1:
        return (yield from _with_standard_error(pairs))
    return (yield from in_structure(pairs.totals, head, loss, structure))


@dataclass(frozen=True)
class AllPairs:
    """All pairs of the points that count: by class, and inside the margin.

    Parameters
    ----------
    head : HeadJacobian
        Jacobian of the head.
    loss : ContrastiveLoss
        Loss that is differentiated.
    class_sums : ClassSums
        Class sums of all points.
    columns : sequence of FeatureStore
        Groups of points that stand for all points, for a finite margin. Empty otherwise.
    """

    head: HeadJacobian
    loss: ContrastiveLoss
    class_sums: ClassSums
    columns: Sequence[FeatureStore] = ()

    @cached_property
    def by_class(self) -> ClassPairWeights:
        """Weights of the pairs that need no more than class sums."""
        return ClassPairWeights(self.class_sums, self.loss.negatives_by_class)

    @cached_property
    def margins(self) -> list[MarginPairWeights]:
        """Weights of the pairs inside the margin, for each group of columns."""
        sums = self.class_sums
        return [MarginPairWeights(self.head, self.loss, part, sums) for part in self.columns]

    def totals(self, term: CurvatureTerm) -> PassSchedule[list[Tensor]]:
        """Yield one pass over the points; for cross blocks also one a tile and chunk of classes."""
        (totals,) = yield from self._passes(term, ((self.by_class, *self.margins),))
        return totals

    def totals_by_group(self, term: CurvatureTerm) -> PassSchedule[list[list[Tensor]]]:
        """Yield the same pass; return totals by class, then of each group of columns."""
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
        """Add ``-2 ((1/P + b) sum_c G_c^T G_c - b G^T G)`` of a tile to the totals."""
        (within, between), overall = self.by_class.within_and_between, None
        for classes in class_chunks(self.class_sums, tile):
            finished = yield ClassesPass(self.head, self.loss.geometry, classes, term, tile=tile)
            *products, g = finished.totals
            add_terms(totals, list(products), -2 * within)
            overall = g if overall is None else overall + g
        if overall is not None and between:
            add_terms(totals, term.classes(tile, overall[None]), 2 * between)


def _with_standard_error(pairs: AllPairs) -> PassSchedule[DiagCurvature]:
    """Return the mean over disjoint groups of columns, and its standard error.

    The error has the factor of sampling without replacement from a finite population.
    """
    parts = yield from pairs.totals_by_group(diagonal_term(pairs.head, pairs.loss))
    by_class, *estimates = (in_parameter_order(totals, pairs.head) for totals in parts)
    stacked = torch.stack(estimates)
    spread = stacked.std(0) / len(stacked) ** 0.5
    share = sum(map(len, pairs.columns)) / pairs.class_sums.n_points
    return DiagCurvature(by_class + stacked.mean(0), spread * max(0.0, 1 - share) ** 0.5)
