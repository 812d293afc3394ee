"""The contrastive Gauss-Newton curvature of a head: every kind of pairs x every structure."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laplace_metric.contrastive.contrast import Contrast
from laplace_metric.contrastive.nearest_kronecker import nearest_kronecker
from laplace_metric.contrastive.pairs import (
    ClassPairs,
    MarginPairs,
    PairSource,
    TuplePairs,
    collect_class_sums,
    feed_all,
    reference_columns,
)
from laplace_metric.contrastive.statistics import ClassSums
from laplace_metric.contrastive.sums import (
    GeneralDense,
    GeneralDiagonal,
    LayeredDiagonal,
    LinearDense,
)
from laplace_metric.contrastive.targets import PairCounts, tuple_targets
from laplace_metric.curvature import CurvatureSum, DiagonalSum
from laplace_metric.curvature.memory import check_memory
from laplace_metric.errors import InputError, LabelError
from laplace_metric.features import FeatureStore
from laplace_metric.jacobians import HeadJacobian, LinearJacobian


def all_pairs_curvature(
    store: FeatureStore,
    head: HeadJacobian,
    contrast: Contrast,
    structure: str = "diag",
    *,
    reference: int | None = None,
    generator: torch.Generator | None = None,
) -> CurvatureSum:
    """Curvature of every ordered pair of the stored points, before the positivity step.

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
    >>> contrast = Contrast.of("arccos", "full", normalized=False)
    >>> all_pairs_curvature(store, head, contrast).values.shape
    torch.Size([15])
    """
    check_memory(structure, head.layouts, store.device)
    sums = collect_class_sums(store, head, contrast.geometry)
    if len(sums.classes) < 2:
        raise LabelError(
            f"all {sums.n_points} points have label {sums.classes.tolist()}: a contrastive "
            "curvature needs at least two classes."
        )
    by_class = _class_pairs(store, head, contrast, sums)
    if not contrast.negatives_by_pair:
        return measure([by_class], head, contrast, structure)
    if reference is None:
        negatives = _margin_pairs(store, head, contrast, sums)
        return measure([by_class, negatives], head, contrast, structure)
    groups = reference_columns(len(store), reference, generator)
    if structure != "diag":
        negatives = _margin_pairs(store, head, contrast, sums, torch.cat(groups))
        return measure([by_class, negatives], head, contrast, structure)
    parts = [_margin_pairs(store, head, contrast, sums, group) for group in groups]
    return _with_standard_error(by_class, parts, head, contrast, len(store) / len(groups[0]))


def _class_pairs(
    store: FeatureStore, head: HeadJacobian, contrast: Contrast, sums: ClassSums
) -> ClassPairs:
    negatives, cross = contrast.negatives_by_class, contrast.approximation.cross
    return ClassPairs(store, head, contrast.geometry, sums, negatives=negatives, cross=cross)


def _margin_pairs(
    store: FeatureStore,
    head: HeadJacobian,
    contrast: Contrast,
    sums: ClassSums,
    columns: Tensor | None = None,
) -> MarginPairs:
    """In-margin negatives; those of some columns stand for all."""
    assert contrast.margin is not None
    share = 1.0 if columns is None else len(columns) / len(store)
    weight = PairCounts.of(sums.counts).negative_weight / share
    cross = contrast.approximation.cross
    return MarginPairs(
        store, head, contrast.geometry, contrast.margin, weight, cross=cross, columns=columns
    )


def _with_standard_error(
    by_class: ClassPairs,
    parts: Sequence[MarginPairs],
    head: HeadJacobian,
    contrast: Contrast,
    share: float,
) -> DiagonalSum:
    """The mean over disjoint groups of columns, with the finite-population factor in its error."""
    positive = measure([by_class], head, contrast, "diag")
    estimates = torch.stack([_diagonal([part], head, contrast).values for part in parts])
    spread = estimates.std(0) / len(parts) ** 0.5
    left_out = max(0.0, 1 - len(parts) / share) ** 0.5
    assert isinstance(positive, DiagonalSum)
    return DiagonalSum(positive.values + estimates.mean(0), spread * left_out)


def _diagonal(sources: Sequence[PairSource], head: HeadJacobian, contrast: Contrast) -> DiagonalSum:
    accumulator = LayeredDiagonal if head.layered else GeneralDiagonal
    n_rows = contrast.geometry.n_rows(head.n_outputs)
    return feed_all(sources, accumulator(head, n_rows)).result()


def measure(
    sources: Sequence[PairSource], head: HeadJacobian, contrast: Contrast, structure: str
) -> CurvatureSum:
    """The curvature of these pairs in the given structure."""
    if structure == "diag":
        return _diagonal(sources, head, contrast)
    n_rows = contrast.geometry.n_rows(head.n_outputs)
    if structure == "kron":
        return nearest_kronecker(sources, head, n_rows)
    dense = LinearDense if isinstance(head, LinearJacobian) else GeneralDense
    return feed_all(sources, dense(head, n_rows)).result()


def batch_curvature(
    features: Tensor,
    head: HeadJacobian,
    contrast: Contrast,
    structure: str = "diag",
    *,
    labels: Tensor | None = None,
    indices_tuple: tuple[Tensor, ...] | None = None,
) -> CurvatureSum:
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
    if labels is not None:
        return all_pairs_curvature(FeatureStore.of(features, labels), head, contrast, structure)
    assert indices_tuple is not None
    check_memory(structure, head.layouts, features.device)
    points = contrast.geometry.points(features, head.raw(features))
    kind = contrast.approximation
    targets = tuple_targets(
        indices_tuple, points.coordinates, contrast.margin, negatives=kind.negatives
    )
    pairs = TuplePairs(points, contrast.geometry, targets, cross=kind.cross)
    return measure([pairs], head, contrast, structure)
