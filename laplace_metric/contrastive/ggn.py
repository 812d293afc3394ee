"""The contrastive Gauss-Newton diagonal of a linear head: one front for every kind of pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.contrastive.approximations import Approximation, approximation
from laplace_metric.contrastive.class_sums import collect_class_sums, cross_part, point_part
from laplace_metric.contrastive.geometry import Geometry, geometry
from laplace_metric.contrastive.margin import negative_part, reference_part
from laplace_metric.contrastive.pair_blocks import dense_diagonal
from laplace_metric.contrastive.statistics import ClassSums
from laplace_metric.contrastive.targets import PairCounts, tuple_targets
from laplace_metric.errors import InputError, LabelError
from laplace_metric.features import FeatureStore
from laplace_metric.jacobians import LinearJacobian

SPHERE_DIAMETER = 2.0


@dataclass(frozen=True)
class Contrast:
    """Which contrastive Hessian is meant: geometry x approximation x margin.

    Examples
    --------
    >>> contrast = Contrast.of("arccos", "fixed", normalized=False)
    >>> contrast.negatives_by_class
    True
    """

    geometry: Geometry
    approximation: Approximation
    margin: float | None = None

    @classmethod
    def of(
        cls, distance: str, hessian: str, *, normalized: bool, margin: float | None = None
    ) -> Contrast:
        """From the public names; a margin that every pair of directions is inside becomes None."""
        space = geometry(distance, normalized=normalized)
        check_margin(margin)
        if margin is not None and space.spherical and margin >= SPHERE_DIAMETER:
            margin = None
        return cls(space, approximation(hessian), margin)

    @property
    def negatives_by_class(self) -> bool:
        """Every negative pair counts, so class sums are enough."""
        return self.approximation.negatives and self.margin is None

    @property
    def negatives_by_pair(self) -> bool:
        """Only negatives inside a finite margin count, so pairs must be looked at."""
        return self.approximation.negatives and self.margin is not None

    @property
    def vanishes(self) -> bool:
        """Zero for balanced classes: fixed, without second derivative, every negative counted."""
        return (
            self.negatives_by_class
            and not self.approximation.cross
            and not self.geometry.curved_loss
        )


def check_margin(margin: float | None) -> None:
    """Raise ``InputError`` unless margin is None or a finite positive number."""
    if margin is None:
        return
    if not isinstance(margin, (int, float)) or not 0 < margin < float("inf"):
        raise InputError(f"margin={margin!r}: pass a positive distance, or None for every pair.")


@dataclass(frozen=True)
class Curvature:
    """A diagonal over augmented parameters, ``value`` [Z, D'] float64, before any positivity step.

    ``standard_error`` [Z, D'] is set where a reference subset estimated it, else None.
    """

    value: Tensor
    standard_error: Tensor | None = None


def all_pairs_curvature(
    store: FeatureStore,
    head: LinearJacobian,
    contrast: Contrast,
    *,
    reference: int | None = None,
    generator: torch.Generator | None = None,
) -> Curvature:
    """Curvature diagonal of every ordered pair of the stored points (see ``class_sums``).

    Raises
    ------
    LabelError
        If all points have one class: without negatives nothing is contrasted.

    Examples
    --------
    >>> store = FeatureStore.of(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2]))
    >>> head = LinearJacobian(torch.randn(3, 4), torch.zeros(3))
    >>> contrast = Contrast.of("arccos", "full", normalized=False)
    >>> all_pairs_curvature(store, head, contrast).value.shape
    torch.Size([3, 5])
    """
    sums = collect_class_sums(store, head, contrast.geometry)
    if len(sums.classes) < 2:
        raise LabelError(
            f"all {sums.n_points} points have label {sums.classes.tolist()}: a contrastive "
            "curvature needs at least two classes."
        )
    value, error = _class_sum_value(store, head, contrast, sums), None
    if contrast.negatives_by_pair:
        extra, error = _margin_value(store, head, contrast, sums, reference, generator)
        value = value + extra
    rows = len(head.weight)
    return Curvature(value.expand(rows, -1), None if error is None else error.expand(rows, -1))


def _class_sum_value(
    store: FeatureStore, head: LinearJacobian, contrast: Contrast, sums: ClassSums
) -> Tensor:
    negatives = contrast.negatives_by_class
    value = point_part(store, head, contrast.geometry, sums, negatives=negatives)
    if contrast.approximation.cross:
        value += cross_part(store, head, contrast.geometry, sums, negatives=negatives)
    return value


def _margin_value(
    store: FeatureStore,
    head: LinearJacobian,
    contrast: Contrast,
    sums: ClassSums,
    reference: int | None,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor | None]:
    assert contrast.margin is not None
    weight = PairCounts.of(sums.counts).negative_weight
    arguments = (store, head, contrast.geometry, contrast.margin, weight)
    cross = contrast.approximation.cross
    if reference is None:
        return negative_part(*arguments, cross=cross), None
    return reference_part(*arguments, cross=cross, reference=reference, generator=generator)


def batch_curvature(
    features: Tensor,
    head: LinearJacobian,
    contrast: Contrast,
    *,
    labels: Tensor | None = None,
    indices_tuple: tuple[Tensor, ...] | None = None,
) -> Curvature:
    """Curvature diagonal of one minibatch, from all its pairs or from a miner's tuples.

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
        store = FeatureStore.of(features, labels)
        return all_pairs_curvature(store, head, contrast)
    assert indices_tuple is not None
    return _tuple_curvature(features, head, contrast, indices_tuple)


def _tuple_curvature(
    features: Tensor, head: LinearJacobian, contrast: Contrast, indices: tuple[Tensor, ...]
) -> Curvature:
    points = contrast.geometry.points(head.augment(features), head.raw(features))
    kind = contrast.approximation
    targets = tuple_targets(indices, points.coordinates, contrast.margin, negatives=kind.negatives)
    value = dense_diagonal(points, targets, contrast.geometry, cross=kind.cross)
    return Curvature(value.expand(len(head.weight), -1))
