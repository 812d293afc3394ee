"""The contrastive Gauss-Newton curvature of a head: every kind of pairs x every structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.randomness import Seed
from laplace_metric.curvature._contractions import nearest_kronecker
from laplace_metric.curvature._loss import ContrastiveLoss, Geometry
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
from laplace_metric.curvature._statistics import ClassSums, add_terms
from laplace_metric.curvature._sums import Curvature, DiagCurvature, check_memory
from laplace_metric.curvature._terms import (
    CurvatureTerm,
    GeneralDense,
    GeneralDiagonal,
    LayeredDiagonal,
    LinearDense,
    Tile,
)
from laplace_metric.curvature.by_class import ClassPairWeights, Points
from laplace_metric.errors import InputError, LabelError
from laplace_metric.heads._jacobian import HeadJacobian, LinearJacobian
from laplace_metric.models._store import FeatureStore


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
    head = summed_in(head, loss)
    sums = (yield ClassSumsPass(head, loss.geometry)).by_class
    if len(sums.classes) < 2:
        raise LabelError(
            f"all {sums.n_points} points have label {sums.classes.tolist()}: a contrastive "
            "curvature needs at least two classes."
        )
    pairs = AllPairs.of(head, loss, sums, columns)
    if len(pairs.margins) > 1:
        return (yield from _with_standard_error(pairs))
    return (yield from _in_structure(pairs.totals, head, loss, structure))


def summed_in(head: HeadJacobian, loss: ContrastiveLoss) -> HeadJacobian:
    """The head in the type of the sums over points: float64 where terms cancel, else its own."""
    return head.to(torch.float64) if loss.cancels else head


@dataclass(frozen=True)
class AllPairs:
    """Every pair of the points that is by class or inside the margin; cross blocks if ``cross``.

    Parameters
    ----------
    whole : ClassSums
        Of all points.
    margins : of each group of columns
    """

    head: HeadJacobian
    geometry: Geometry
    class_sums: ClassSums
    by_class: ClassPairWeights
    margins: Sequence[MarginPairWeights]
    cross: bool

    @classmethod
    def of(
        cls,
        head: HeadJacobian,
        loss: ContrastiveLoss,
        sums: ClassSums,
        columns: Sequence[FeatureStore] = (),
    ) -> AllPairs:
        """The pairs that a loss means, of points with these class sums."""
        space, cross = loss.geometry, loss.approximation.cross
        margin = float(loss.margin or 0)
        margins = [MarginPairWeights(head, space, part, sums, margin, cross) for part in columns]
        by_class = ClassPairWeights(sums, loss.negatives_by_class)
        return cls(head, space, sums, by_class, margins, cross)

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
        over_points = PointsPass(self.head, self.geometry, term, pair_weights, self.class_sums)
        finished = yield over_points
        totals = [list(part) for part in over_points.split(finished.totals)]
        if self.cross:
            for tile in term.tiles():
                yield from self._cross(term, tile, totals[0])
        return totals

    def _cross(self, term: CurvatureTerm, tile: Tile, totals: list[Tensor]) -> PassSchedule[None]:
        """``-2 ((1/P + b) sum_c G_c^T G_c - b G^T G)`` of a tile, in place."""
        within, between, overall = self.by_class.within, self.by_class.between, None
        for classes in class_chunks(self.class_sums, tile):
            finished = yield ClassesPass(self.head, self.geometry, term, tile, classes)
            *products, g = finished.totals
            add_terms(totals, list(products), -2 * within)
            overall = g if overall is None else overall + g
        if overall is not None and between:
            add_terms(totals, term.classes(tile, overall[None]), 2 * between)


def _in_structure(
    totals: Callable[[CurvatureTerm], PassSchedule[list[Tensor]]],
    head: HeadJacobian,
    loss: ContrastiveLoss,
    structure: str,
) -> PassSchedule[Curvature]:
    """H of some pairs, whose totals of any term are known."""
    n_rows = loss.geometry.n_rows(head.n_outputs)
    if structure == "diag":
        diagonal = _diagonal_of(head, n_rows)
        return diagonal.result((yield from totals(diagonal)))
    if structure == "kron":
        return (yield from nearest_kronecker(totals, head, n_rows))
    term = (LinearDense if isinstance(head, LinearJacobian) else GeneralDense)(head, n_rows)
    return term.result((yield from totals(term)))


def _diagonal_of(head: HeadJacobian, n_rows: int) -> LayeredDiagonal | GeneralDiagonal:
    return (LayeredDiagonal if head.layered else GeneralDiagonal)(head, n_rows)


def _with_standard_error(pairs: AllPairs) -> PassSchedule[DiagCurvature]:
    """The mean over disjoint groups of columns, with the finite-population factor in its error."""
    n_rows = pairs.geometry.n_rows(pairs.head.n_outputs)
    term = _diagonal_of(pairs.head, n_rows)
    parts = yield from pairs.totals_by_group(term)
    by_class, *estimates = (term.result(totals).values for totals in parts)
    stacked = torch.stack(estimates)
    spread = stacked.std(0) / len(stacked) ** 0.5
    share = sum(len(group.columns) for group in pairs.margins) / pairs.class_sums.n_points
    return DiagCurvature(by_class + stacked.mean(0), spread * max(0.0, 1 - share) ** 0.5)


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
    head = summed_in(head, loss)
    points = loss.geometry.points_of(head, features)
    y = mined_pair_weights(
        indices_tuple, points.coordinates, loss.margin, negatives=loss.approximation.negatives
    )
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
        blocks = self.loss.geometry.point_blocks(u, y.sum(1), y @ u)
        add_terms(totals, term.points(self.points, blocks))
        if self.loss.approximation.cross:
            add_terms(totals, term.pairs(self.points, self.points, y))
        return totals
