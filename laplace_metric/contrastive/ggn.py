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
    if not contrast.negatives_by_pair or reference is None:
        return measure(pair_sources(store, head, contrast), head, contrast, structure)
    groups = reference_columns(len(store), reference, generator)
    if structure != "diag":
        sources = pair_sources(store, head, contrast, torch.cat(groups))
        return measure(sources, head, contrast, structure)
    by_group = [pair_sources(store, head, contrast, group) for group in groups]
    return _with_standard_error(by_group, head, contrast, len(store) / len(groups[0]))


def pair_sources(
    store: FeatureStore, head: HeadJacobian, contrast: Contrast, columns: Tensor | None = None
) -> list[PairSource]:
    """The pairs that a contrast means: by class, and in-margin negatives if there is a margin.

    Parameters
    ----------
    columns : Tensor [R] or None
        Estimate in-margin negatives from these points; None: exact.

    Raises
    ------
    LabelError
        If all points have one class.
    """
    sums = collect_class_sums(store, head, contrast.geometry)
    if len(sums.classes) < 2:
        raise LabelError(
            f"all {sums.n_points} points have label {sums.classes.tolist()}: a contrastive "
            "curvature needs at least two classes."
        )
    negatives, cross = contrast.negatives_by_class, contrast.approximation.cross
    space = contrast.geometry
    by_class = ClassPairs(store, head, space, sums, negatives=negatives, cross=cross)
    if not contrast.negatives_by_pair:
        return [by_class]
    return [by_class, _margin_pairs(store, head, contrast, sums, columns)]


def _margin_pairs(
    store: FeatureStore,
    head: HeadJacobian,
    contrast: Contrast,
    sums: ClassSums,
    columns: Tensor | None,
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
    sources: Sequence[Sequence[PairSource]], head: HeadJacobian, contrast: Contrast, share: float
) -> DiagonalSum:
    """The mean over disjoint groups of columns, with the finite-population factor in its error."""
    by_class = _diagonal(sources[0][:1], head, contrast).values  # the same for every group
    estimates = torch.stack([_diagonal(pairs[1:], head, contrast).values for pairs in sources])
    spread = estimates.std(0) / len(sources) ** 0.5
    left_out = max(0.0, 1 - len(sources) / share) ** 0.5
    return DiagonalSum(by_class + estimates.mean(0), spread * left_out)


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
