"""A fit as tasks for any framework that maps and merges: Ray, Spark, a queue, a folder of files.

    plan = Plan(embedder, one_batch)
    while plan.task is not None:
        plan.send(merge(collect(plan.task, h, y) for h, y in shards))
    fitted = plan.result()

A task is small (the head, and results of earlier tasks) and can be pickled; so can statistics,
which add up in any order and can be saved, and ``plan.features``, which runs the model. Each task
reads every shard once, so keep the features where the workers can read them: the model runs once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric._utils.validation import as_array, as_tensor, check_dense, refuse_reloaded
from laplace_metric.curvature._passes import Pass, next_pass
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.curvature._structures import Curvature
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.heads._capture import capture
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._locate import locate_head
from laplace_metric.heads._located import LocatedHead
from laplace_metric.heads._repeatable import check_repeatable
from laplace_metric.inputs import ModelInput, read_batch
from laplace_metric.inputs._labels import check_labels
from laplace_metric.laplace.fit._fit import HeadFit
from laplace_metric.models._call_model import to_device
from laplace_metric.models._feature_store import FeatureStore
from laplace_metric.models._modules import device_of


@dataclass(frozen=True)
class HeadInputEncoder:
    """The model up to its head; pickled as one, so that the head stays a part of the model.

    Parameters
    ----------
    model : nn.Module
        Model that holds the head.
    head : LocatedHead
        Head whose inputs are returned.
    """

    model: nn.Module
    head: LocatedHead

    def __call__(self, inputs: ModelInput) -> Tensor:
        """Return h [B, D] of a batch."""
        on_device = to_device(read_batch("inputs", inputs), device_of(self.model))
        return at_least_float32(capture(self.model, self.head, on_device).features)


class Plan:
    """The tasks of a fit, one after the other.

    Parameters
    ----------
    embedder : LaplaceEmbedder
        Model and settings, with ``pairs="all"``; the embedder stays as it is.
    inputs : one batch of the model's inputs
        Inputs on which the model runs once, to find the head.
    reference : (features [R, D], labels [R]) or None
        Random points of all shards, among which in-margin negatives are searched; needed for a
        finite margin. None, the default: the margin is not finite.
    dtype : torch.dtype
        Dtype of the sums. Default: float64, in which the result does not depend on how points are
        split.

    Raises
    ------
    InputError
        For other pairs, or a finite margin without ``reference``.

    Examples
    --------
    >>> model = torch.nn.Linear(4, 2)
    >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
    >>> plan = Plan(LaplaceEmbedder(model, structure="diag"), x[:1])
    >>> while plan.task is not None:
    ...     shards = [(plan.features(x[i::3]), y[i::3]) for i in range(3)]
    ...     plan.send(merge(collect(plan.task, h, labels) for h, labels in shards))
    >>> plan.result()(x).variance.shape
    torch.Size([20, 2])
    """

    def __init__(
        self,
        embedder: LaplaceEmbedder,
        inputs: ModelInput,
        *,
        reference: tuple[Any, Any] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if not isinstance(embedder, LaplaceEmbedder):
            refuse_reloaded("embedder", embedder)
            raise InputError(f"embedder is a {type(embedder).__name__}: pass a LaplaceEmbedder.")
        self.model, settings = embedder.model, embedder.settings
        if settings.pairs != "all":
            raise InputError("a plan needs pairs='all': pairs of batches do not add up.")
        on_device = to_device(read_batch("inputs", inputs), device_of(self.model))
        self.head, seen = locate_head(self.model, on_device, embedder.head)
        check_repeatable(self.model, self.head, on_device, seen)
        self._fit = HeadFit.of(self.head, settings, dtype)
        columns: list[FeatureStore] = []
        if self._fit.loss.negatives_by_pair:
            if reference is None:
                raise InputError(
                    f"margin={settings.margin}: pass reference=(features, labels) of random points."
                )
            if not isinstance(reference, (tuple, list)) or len(reference) != 2:
                raise InputError("reference is no pair: pass (features [R, D], labels [R]).")
            columns = [as_source(*reference, self._fit.exact)]
            if not len(columns[0]):
                raise InputError("reference is empty: pass some random points.")
        self._schedule = self._fit.passes(columns)
        self._curvature: Curvature | None = None
        self._n_points = 0
        self.task: Pass | None = next(self._schedule)
        """What to collect from every shard; None when all is done."""
        self.features = HeadInputEncoder(self.model, self.head)
        """``features(inputs)``: h [B, D] of a batch, what tasks read. It can be pickled."""

    def send(self, statistics: Statistics) -> None:
        """Hand over the merged statistics of the present task, of all shards; go to the next.

        Parameters
        ----------
        statistics : Statistics
            Merged statistics of ``task``, of all shards.

        Raises
        ------
        InputError
            If they are of another task, or of other points than the first one's.
        LabelError
            If all points have one label.
        """
        if self.task is None:
            raise InputError("the plan is done: ask for result().")
        if statistics.task != self.task.task:
            raise InputError("these statistics are not of the plan's present task: collect again.")
        merged = statistics.to(self.task.head.parameters.device)
        self.task.audit(merged)
        whole = self.task.finish(merged)
        self._n_points = self._n_points or whole.n_points
        self.task = None  # an error ends the plan
        self.task, self._curvature = next_pass(self._schedule, whole)

    def result(self) -> LaplaceEmbedder:
        """Return the fitted embedder, when there is no task left."""
        if self._curvature is None:
            raise InputError(
                "the plan is not done: collect plan.task and send it until it is None."
            )
        fitted = self._fit.posterior(self._curvature, self._n_points)
        return LaplaceEmbedder.from_fitted(self.model, self._fit.settings, fitted)


def collect(task: Pass, features: Any, labels: Any) -> Statistics:
    """Return the statistics of one shard, which may have no rows.

    Arrays or tensors; they are read in blocks, in the ``dtype`` of the plan.

    Parameters
    ----------
    task : Pass
        Task of the plan, ``Plan.task``.
    features : array or tensor [n, D]
        Head inputs of the shard, as ``Plan.features`` returns them.
    labels : whole numbers [n]
        Class of each row.
    """
    return task.collect(as_source(features, labels, task.head))


def merge(parts: Iterable[Statistics]) -> Statistics:
    """Return the sum of statistics, in any order; of an iterator, two are held at a time.

    Parameters
    ----------
    parts : iterable of Statistics
        Statistics of one task, at least one.

    Raises
    ------
    InputError
        If there are none, or of several tasks.
    """
    total: Statistics | None = None
    if not isinstance(parts, Iterable):
        raise InputError(f"parts is a {type(parts).__name__}: pass several Statistics.")
    for part in parts:
        if not isinstance(part, Statistics):
            raise InputError(f"parts holds a {type(part).__name__}: pass what collect gave.")
        total = part if total is None else total + part
    if total is None:
        raise InputError("there are no statistics to merge: collect at least one shard.")
    return total


def as_source(features: Any, labels: Any, head: HeadJacobian) -> FeatureStore:
    """Return arrays as points, in the dtype of the head and on its device.

    Parameters
    ----------
    features : array or tensor [n, D]
        Head inputs of the points.
    labels : whole numbers [n]
        Class of each row.
    head : HeadJacobian
        Jacobian of the head that the points enter.

    Raises
    ------
    InputError
        For arrays that do not fit the head or one another.
    """
    like = head.parameters
    if isinstance(features, Tensor):
        check_dense("features", features)
    else:
        features = as_array("features", features)
    if not features.ndim:
        raise InputError(f"features are one {features.dtype}: pass an array [n, D].")
    if not len(features):
        return FeatureStore(dtype=like.dtype, device=like.device)
    with warnings.catch_warnings():  # arrays of Ray's object store, say: they are only read
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        h = as_tensor("features", features)
        y = check_labels(labels, name="labels")
    if head.layered and (h.ndim != 2 or h.shape[1] != head.layouts[0].n_features):
        raise InputError(
            f"features are {tuple(h.shape)}: the head takes [n, {head.layouts[0].n_features}], as "
            "plan.features gives them."
        )
    return FeatureStore.of(h.to(like.device), y.to(like.device), dtype=like.dtype)
