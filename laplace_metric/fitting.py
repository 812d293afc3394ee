"""From a loader to a posterior: find the head, collect its inputs, sum the curvature."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.batches import device_of, labelled_batches
from laplace_metric.contrastive import Contrast, Curvature, all_pairs_curvature, batch_curvature
from laplace_metric.curvature import DiagonalCurvature
from laplace_metric.errors import DegenerateCurvatureWarning, LabelError
from laplace_metric.features import FeatureStore, check_finite, check_shapes
from laplace_metric.heads import Head, capture, find_head
from laplace_metric.jacobians import LinearJacobian, at_least_float32
from laplace_metric.posterior import Posterior
from laplace_metric.settings import Settings

Features = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Fitted:
    """What ``fit`` finds: the head, its posterior, and how many points were seen."""

    head: Head
    posterior: Posterior
    n_points: int

    def with_prior_precision(self, value: float) -> Fitted:
        """The same fit under another prior precision."""
        return replace(self, posterior=self.posterior.with_prior_precision(value))


@dataclass(frozen=True)
class FitOptions:
    """How to fit: reference subset and its generator, memory for features, progress bar."""

    reference: int | None = None
    generator: torch.Generator | None = None
    memory_bytes: int = 512 * 2**20
    progress: bool = True


def fit_posterior(
    model: nn.Module,
    head: nn.Module | str | None,
    loader: Iterable[Any],
    settings: Settings,
    options: FitOptions,
) -> Fitted:
    """Fit ``settings`` to a loader of ``(inputs, labels)``; the model runs over it once.

    (The first batch runs twice: once more to find the head.)
    """
    device = device_of(model)
    batches = labelled_batches(loader, device, progress=options.progress, description="Fitting")
    first = next(batches)
    found = find_head(model, first[0], head)
    jacobian = LinearJacobian.of(found.module)
    contrast = settings.contrast(normalized=found.normalized)
    features = _features(model, found, chain([first], batches))
    collect = _all_pairs if settings.pairs == "all" else _batch_pairs
    curvature, n_points = collect(features, jacobian, contrast, settings, options)
    posterior = _posterior(jacobian, curvature, n_points, settings)
    warn_if_degenerate(contrast, posterior)
    return Fitted(found, posterior, n_points)


def _features(model: nn.Module, head: Head, batches: Iterator[tuple[Any, Tensor]]) -> Features:
    """(h [B, D], labels [B]) of each batch."""
    for inputs, labels in batches:
        yield at_least_float32(capture(model, head, inputs).features), labels


def _where(number: int) -> str:
    return f"the head's input in loader batch {number}"


def _all_pairs(
    features: Features,
    head: LinearJacobian,
    contrast: Contrast,
    _settings: Settings,
    options: FitOptions,
) -> tuple[Curvature, int]:
    """Every ordered pair of the data set; features are kept, or spilled to a temporary file."""
    with FeatureStore(options.memory_bytes) as store:
        for number, (h, labels) in enumerate(features):
            store.append(h, labels, where=_where(number))
        curvature = all_pairs_curvature(
            store, head, contrast, reference=options.reference, generator=options.generator
        )
        return curvature, len(store)


def _batch_pairs(
    features: Features,
    head: LinearJacobian,
    contrast: Contrast,
    settings: Settings,
    _options: FitOptions,
) -> tuple[Curvature, int]:
    """The mean over batches, weighted by their points, of each batch's own pair curvature."""
    n_points, total = 0, torch.zeros((), dtype=torch.float64, device=head.weight.device)
    for number, (h, labels) in enumerate(features):
        check_shapes(h, labels, where=_where(number))
        check_finite(h, where=_where(number))
        try:
            value = _one_batch(h, labels, head, contrast, settings).value
        except LabelError as error:
            raise LabelError(f"loader batch {number}: {error}") from error
        n_points, total = n_points + len(labels), total + len(labels) * value
    return Curvature(total / n_points), n_points


def _one_batch(
    h: Tensor, labels: Tensor, head: LinearJacobian, contrast: Contrast, settings: Settings
) -> Curvature:
    if not callable(settings.pairs):
        return batch_curvature(h, head, contrast, labels=labels)
    indices = tuple(index.to(h.device) for index in settings.pairs(head.raw(h), labels))
    return batch_curvature(h, head, contrast, indices_tuple=indices)


def _posterior(
    head: LinearJacobian, curvature: Curvature, n_points: int, settings: Settings
) -> Posterior:
    error = curvature.standard_error
    diagonal = DiagonalCurvature.clip(
        head.flatten_augmented(curvature.value),
        None if error is None else head.flatten_augmented(error),
    )
    n_effective = float(n_points) if settings.n_effective is None else settings.n_effective
    return Posterior(head.parameters, diagonal, n_effective, settings.prior_precision)


def warn_if_degenerate(contrast: Contrast, posterior: Posterior) -> None:
    """Warn when the curvature says nothing, so that the posterior is nearly the prior."""
    curvature = posterior.curvature
    gained = posterior.n_effective * float(curvature.values.max())
    if contrast.vanishes:
        reason = (
            "hessian='fixed' with distance='euclidean' and no finite margin sums to zero for "
            "balanced classes, whatever the data"
        )
    elif gained < 1e-6 * posterior.prior_precision:
        clipped = curvature.clipped_fraction
        reason = (
            f"{clipped:.0%} of it was negative and set to zero"
            if clipped > 0
            else f"its largest entry is {float(curvature.values.max()):.2g}"
        )
    else:
        return
    warnings.warn(
        f"the curvature is degenerate, so the posterior is close to the prior: {reason}. Use "
        "distance='arccos', hessian='positives', or a finite margin that some negative pairs are "
        "outside of.",
        DegenerateCurvatureWarning,
        stacklevel=4,
    )
