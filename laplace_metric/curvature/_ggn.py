"""The contrastive Gauss-Newton curvature of a head: every kind of pairs x every structure."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laplace_metric.curvature._loss import ContrastiveLoss
from laplace_metric.curvature._nearest_kronecker import nearest_kronecker
from laplace_metric.curvature._pairs import AllPairs, MinedPairs, PairSet
from laplace_metric.curvature._statistics import ClassSums
from laplace_metric.curvature.pair_weights import (
    ClassPairWeights,
    MarginPairWeights,
    column_groups,
    mined_pair_weights,
)
from laplace_metric.curvature.passes import ClassSumsPass, PassSchedule, check_two_classes, run
from laplace_metric.curvature.structures import Curvature, DiagCurvature, check_memory
from laplace_metric.curvature.terms import (
    GeneralDense,
    GeneralDiagonal,
    LayeredDiagonal,
    LinearDense,
)
from laplace_metric.errors import InputError
from laplace_metric.models.features import FeatureSource, FeatureStore
from laplace_metric.models.jacobians import HeadJacobian, LinearJacobian


def all_pairs_curvature(
    source: FeatureSource,
    head: HeadJacobian,
    loss: ContrastiveLoss,
    structure: str = "diag",
    *,
    reference: int | None = None,
    generator: torch.Generator | None = None,
) -> Curvature:
    """Curvature of every ordered pair of the points, before the positivity step.

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
    return run(curvature_passes(head, loss, structure, columns), source)


def margin_columns(
    source: FeatureSource,
    loss: ContrastiveLoss,
    structure: str,
    reference: int | None = None,
    generator: torch.Generator | None = None,
) -> list[FeatureSource]:
    """What in-margin negatives are looked for among: nothing, all points, or some of them."""
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
    columns: Sequence[FeatureSource] = (),
) -> PassSchedule[Curvature]:
    """The passes of a fit: class sums, then those of the structure.

    The diagonal takes two passes; the Kronecker structure one more for each half step of its power
    iteration (two or three steps) and one to refine; cross blocks one more for each of these and
    each slab of G_c.

    Parameters
    ----------
    columns : for a finite margin, groups of points that stand for all
    """
    sums = (yield ClassSumsPass(head, loss.geometry)).by_class
    check_two_classes(sums)
    pairs = population_pairs(head, loss, sums, columns)
    if len(pairs.margins) > 1:
        return (yield from _with_standard_error(pairs))
    return (yield from curvature_of_pairs(pairs, head, loss, structure))


def population_pairs(
    head: HeadJacobian,
    loss: ContrastiveLoss,
    sums: ClassSums,
    columns: Sequence[FeatureSource] = (),
) -> AllPairs:
    """The pairs that a contrast means, of points with these class sums."""
    space, cross = loss.geometry, loss.approximation.cross
    margin = float(loss.margin or 0)
    margins = [MarginPairWeights(head, space, part, sums, margin, cross) for part in columns]
    by_class = ClassPairWeights(sums, loss.negatives_by_class)
    return AllPairs(head, space, sums, by_class, margins, cross)


def _with_standard_error(pairs: AllPairs) -> PassSchedule[DiagCurvature]:
    """The mean over disjoint groups of columns, with the finite-population factor in its error."""
    n_rows = pairs.geometry.n_rows(pairs.head.n_outputs)
    term = _diagonal_of(pairs.head, n_rows)
    parts = yield from pairs.apart(term)
    known, *estimates = (term.result(totals).values for totals in parts)
    stacked = torch.stack(estimates)
    spread = stacked.std(0) / len(stacked) ** 0.5
    share = sum(len(group.columns) for group in pairs.margins) / pairs.whole.n_points
    return DiagCurvature(known + stacked.mean(0), spread * max(0.0, 1 - share) ** 0.5)


def _diagonal_of(head: HeadJacobian, n_rows: int) -> LayeredDiagonal | GeneralDiagonal:
    return (LayeredDiagonal if head.layered else GeneralDiagonal)(head, n_rows)


def curvature_of_pairs(
    pairs: PairSet, head: HeadJacobian, loss: ContrastiveLoss, structure: str
) -> PassSchedule[Curvature]:
    """The curvature of these pairs in the given structure."""
    n_rows = loss.geometry.n_rows(head.n_outputs)
    if structure == "diag":
        diagonal = _diagonal_of(head, n_rows)
        return diagonal.result((yield from pairs.totals(diagonal)))
    if structure == "kron":
        return (yield from nearest_kronecker(pairs, head, n_rows))
    term = (LinearDense if isinstance(head, LinearJacobian) else GeneralDense)(head, n_rows)
    return term.result((yield from pairs.totals(term)))


def batch_curvature(
    features: Tensor,
    head: HeadJacobian,
    loss: ContrastiveLoss,
    structure: str = "diag",
    *,
    labels: Tensor | None = None,
    indices_tuple: tuple[Tensor, ...] | None = None,
) -> Curvature:
    """Curvature of one minibatch, from all its pairs or from a miner's tuples.

    Positive and negative pairs are scaled separately, ``1/|B_pos|`` and ``-1/|B_neg|``, which is
    the paper's y^B with its factor |D^2|/|B|: an estimate of the all-pairs curvature.

    Parameters
    ----------
    features : Tensor [B, D]
        Inputs of the head.
    labels : Tensor [B], for all pairs of the batch.
    indices_tuple : pairs or triplets of a pytorch-metric-learning miner, instead of labels.

    Raises
    ------
    InputError
        Unless exactly one of ``labels`` and ``indices_tuple`` is given.
    """
    if (labels is None) == (indices_tuple is None):
        raise InputError("pass exactly one of labels and indices_tuple.")
    store = FeatureStore.of(features, labels if labels is not None else _no_labels(features))
    if labels is not None:
        return all_pairs_curvature(store, head, loss, structure)
    assert indices_tuple is not None
    check_memory(structure, head.layouts, features.device)
    points = loss.geometry.points(features, head.forward(features))
    kind = loss.approximation
    targets = mined_pair_weights(
        indices_tuple, points.coordinates, loss.margin, negatives=kind.negatives
    )
    pairs = MinedPairs(points, loss.geometry, targets, cross=kind.cross)
    return run(curvature_of_pairs(pairs, head, loss, structure), store)


def _no_labels(features: Tensor) -> Tensor:
    return torch.zeros(len(features), dtype=torch.int64, device=features.device)
