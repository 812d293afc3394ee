"""From a loader to a posterior: find the head, collect its inputs, sum the curvature."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.files import digest
from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.version import __version__
from laplace_metric.curvature import ContrastiveLoss, batch_curvature, curvature_passes
from laplace_metric.curvature.passes import drive
from laplace_metric.curvature.structures import Curvature, check_memory
from laplace_metric.errors import (
    DegenerateCurvatureWarning,
    EmptyLoaderError,
    InputError,
    LabelError,
)
from laplace_metric.laplace._collect import Batches, collect_features, features_of, where
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._settings import FitOptions, Settings, resolved
from laplace_metric.laplace.runtime import (
    Checkpoint,
    PassExecutor,
    ProcessGroup,
    agreed_head,
    open_checkpoint,
)
from laplace_metric.models import device_of, labelled_batches
from laplace_metric.models.features import FeatureStore, check_finite, check_shapes
from laplace_metric.models.heads import LocatedHead, describe
from laplace_metric.models.jacobians import HeadJacobian, jacobian_of


@dataclass(frozen=True)
class Fitted:
    """What ``fit`` finds: the head, its posterior, how many points were seen, the structure."""

    head: LocatedHead
    posterior: Posterior
    n_points: int
    n_outputs: int
    structure: str
    backend: str = "auto"

    @cached_property
    def jacobian(self) -> HeadJacobian:
        """The head as its Jacobian backend sees it."""
        return jacobian_of(self.head.module, self.n_outputs, self.backend)

    def with_precision(self, prior_precision: float, n_effective: float | None = None) -> Fitted:
        """The same fit under another prior precision (and n_effective)."""
        return replace(self, posterior=self.posterior.with_precision(prior_precision, n_effective))


def fit_posterior(
    model: nn.Module,
    head: nn.Module | str | None,
    loader: Iterable[Any],
    settings: Settings,
    options: FitOptions,
) -> Fitted:
    """Fit ``settings`` to a loader of ``(inputs, labels)``; the model runs over it once.

    (The first batch runs three times: to find the head, its size, and for its features.)
    """
    ranks = ProcessGroup.of(distributed=options.distributed)
    if ranks.n > 1:
        ranks.agree(ranks.attempt(lambda: _told(model, settings, options)))
    progress = options.progress and ranks.index == 0
    batches = labelled_batches(loader, device_of(model), progress=progress, description="Fitting")
    first = ranks.attempt(lambda: _first(batches, or_none=ranks.n > 1))
    head_found, n_outputs = agreed_head(model, head, first, ranks)
    module, backend = head_found.module, settings.backend
    jacobian = ranks.attempt(lambda: jacobian_of(module, n_outputs, backend))
    settings = settings.resolved(resolved(settings.structure, jacobian))
    loss = settings.loss(normalized=head_found.normalized)
    data = Data(model, head_found, n_outputs, batches if first is None else chain([first], batches))
    if settings.pairs == "all":
        curvature, n_points = _all_pairs(data, loss, settings, options, ranks)
    else:
        _check_pairs(options)
        curvature, n_points = _batch_pairs(data, jacobian, loss, settings)
    return fitted_to(head_found, n_outputs, curvature, n_points, settings)


def fitted_to(
    head: LocatedHead, n_outputs: int, curvature: Curvature, n_points: int, settings: Settings
) -> Fitted:
    """The posterior of a curvature, with a warning if that says nothing."""
    jacobian = jacobian_of(head.module, n_outputs, settings.backend)
    n_effective = float(n_points) if settings.n_effective is None else settings.n_effective
    spectral = curvature.decompose(settings.positivity)
    posterior = Posterior(jacobian.parameters, spectral, n_effective, settings.prior_precision)
    warn_if_degenerate(settings.loss(normalized=head.normalized), posterior)
    return Fitted(head, posterior, n_points, n_outputs, settings.structure, settings.backend)


@dataclass(frozen=True)
class Data:
    """A model, its head, and the batches of this rank."""

    model: nn.Module
    head: LocatedHead
    n_outputs: int
    batches: Batches


def _first(batches: Batches, *, or_none: bool) -> tuple[Any, Tensor] | None:
    try:
        return next(batches)
    except EmptyLoaderError:
        if or_none:
            return None
        raise


def _check_pairs(options: FitOptions) -> None:
    for name in ("distributed", "checkpoint_dir", "precision"):
        if getattr(options, name):
            raise InputError(f"{name} needs pairs='all': pairs of batches do not add up.")


def _all_pairs(
    data: Data, loss: ContrastiveLoss, settings: Settings, options: FitOptions, ranks: ProcessGroup
) -> tuple[Curvature, int]:
    """Every ordered pair of the data set; features are kept, or spilled to a file."""
    head = ranks.attempt(lambda: _head_in(options.dtype, data, settings))
    with ExitStack() as closing:
        identity = partial(_identity, data, settings, options)
        checkpoint = open_checkpoint(identity, options, ranks)
        if checkpoint is not None:
            closing.callback(checkpoint.close)
        store = ranks.attempt(lambda: closing.enter_context(_store(data, options, checkpoint)))
        due = checkpoint.due if checkpoint is not None else lambda: False
        ranks.attempt(lambda: collect_features(data.model, data.head, data.batches, store, due))
        closing.enter_context(full_precision())  # the model may run under autocast, the sums not
        ranks.attempt(lambda: check_memory(settings.structure, head.layouts, store.device))
        site = PassExecutor(store, ranks, checkpoint, options.progress and ranks.index == 0)
        how = options.reference, options.generator
        columns = site.columns(loss, settings.structure, *how)
        schedule = curvature_passes(head, loss, settings.structure, columns)
        return drive(schedule, site.collect, ranks.attempt), site.n_points


def _head_in(dtype: torch.dtype | None, data: Data, settings: Settings) -> HeadJacobian:
    module = data.head.module if dtype is None else deepcopy(data.head.module).to(dtype)
    return jacobian_of(module, data.n_outputs, settings.backend)


def _store(data: Data, options: FitOptions, checkpoint: Checkpoint | None) -> FeatureStore:
    device = device_of(data.model)
    if checkpoint is not None:
        return checkpoint.store(device, options.dtype)
    return FeatureStore(options.memory_bytes, dtype=options.dtype, device=device)


def _told(model: nn.Module, settings: Settings, options: FitOptions) -> dict[str, Any]:
    """What every rank must have alike."""
    state = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    weights = digest(f"{model} {list(state)}", list(state.values()))
    sums = {"precision": str(options.dtype), "reference": options.reference}
    return {**settings.to_json(), **sums, "model": weights, "version": __version__}


def _identity(data: Data, settings: Settings, options: FitOptions) -> dict[str, Any]:
    """What a checkpoint belongs to; its sums know nothing of the prior."""
    drawn = options.generator is not None and options.reference is not None
    state = [options.generator.get_state()] if drawn and options.generator is not None else []
    head = describe(data.head, data.n_outputs)
    told = _told(data.model, settings, options)
    sums = {
        k: v for k, v in told.items() if k not in ("prior_precision", "n_effective", "positivity")
    }
    return {**sums, "head": head, "generator": digest("", state)}


def _batch_pairs(
    data: Data, head: HeadJacobian, loss: ContrastiveLoss, settings: Settings
) -> tuple[Curvature, int]:
    """The mean over batches, weighted by their points, of each batch's own pair curvature."""
    n_points, total = 0, None
    for number, (inputs, labels) in enumerate(data.batches):
        h = features_of(data.model, data.head, inputs)
        check_shapes(h, labels, where=where(number))
        check_finite(h, where=where(number))
        try:
            value = _one_batch(h, labels, head, loss, settings).scaled(len(labels))
        except LabelError as error:
            raise LabelError(f"loader batch {number}: {error}") from error
        n_points, total = n_points + len(labels), value if total is None else total + value
    assert total is not None
    return total.scaled(1 / n_points), n_points


@full_precision()
def _one_batch(
    h: Tensor, labels: Tensor, head: HeadJacobian, loss: ContrastiveLoss, settings: Settings
) -> Any:
    structure = settings.structure
    if not callable(settings.pairs):
        return batch_curvature(h, head, loss, structure, labels=labels)
    indices = tuple(index.to(h.device) for index in settings.pairs(head.forward(h), labels))
    return batch_curvature(h, head, loss, structure, indices_tuple=indices)


def warn_if_degenerate(loss: ContrastiveLoss, posterior: Posterior) -> None:
    """Warn when the curvature says nothing, so that the posterior is nearly the prior."""
    curvature = posterior.curvature
    gained = posterior.n_effective * float(curvature.eigenvalues.max())
    if loss.vanishes:
        reason = (
            "hessian='fixed' with distance='euclidean' and no finite margin sums to zero for "
            "balanced classes, whatever the data"
        )
    elif gained < 1e-6 * posterior.prior_precision:
        negative = curvature.negative_fraction
        reason = (
            f"{negative:.0%} of it was negative"
            if negative > 0
            else f"its largest eigenvalue is {float(curvature.eigenvalues.max()):.2g}"
        )
    else:
        return
    warnings.warn(
        f"the curvature is degenerate, so the posterior is close to the prior: {reason}. Use "
        "distance='arccos', hessian='positives', or a finite margin that some negative pairs are "
        "outside of.",
        DegenerateCurvatureWarning,
        stacklevel=5,
    )
