"""From a loader to a posterior: find the head, collect its inputs, sum the curvature."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.batches import device_of, labelled_batches
from laplace_metric.contrastive import Contrast, all_pairs_curvature, batch_curvature
from laplace_metric.curvature import CurvatureSum
from laplace_metric.errors import DegenerateCurvatureWarning, LabelError
from laplace_metric.features import FeatureStore, check_finite, check_shapes
from laplace_metric.heads import Head, capture, find_head
from laplace_metric.jacobians import HeadJacobian, at_least_float32, jacobian_of
from laplace_metric.posterior import Posterior
from laplace_metric.settings import Settings
from laplace_metric.structure import resolved

Features = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Fitted:
    """What ``fit`` finds: the head, its posterior, how many points were seen, the structure."""

    head: Head
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

    (The first batch runs three times: to find the head, its size, and for its features.)
    """
    device = device_of(model)
    batches = labelled_batches(loader, device, progress=options.progress, description="Fitting")
    first = next(batches)
    head_found = find_head(model, first[0], head)
    n_outputs = capture(model, head_found, first[0]).raw.shape[1]
    jacobian = jacobian_of(head_found.module, n_outputs, settings.backend)
    settings = replace(settings, structure=resolved(settings.structure, jacobian))
    contrast = settings.contrast(normalized=head_found.normalized)
    features = _features(model, head_found, chain([first], batches))
    collect = _all_pairs if settings.pairs == "all" else _batch_pairs
    curvature, n_points = collect(features, jacobian, contrast, settings, options)
    posterior = _posterior(jacobian, curvature, n_points, settings)
    warn_if_degenerate(contrast, posterior)
    how = settings.structure, settings.backend
    return Fitted(head_found, posterior, n_points, n_outputs, *how)


def _features(model: nn.Module, head: Head, batches: Iterator[tuple[Any, Tensor]]) -> Features:
    """(h [B, D], labels [B]) of each batch."""
    for inputs, labels in batches:
        yield at_least_float32(capture(model, head, inputs).features), labels


def _where(number: int) -> str:
    return f"the head's input in loader batch {number}"


def _all_pairs(
    features: Features,
    head: HeadJacobian,
    contrast: Contrast,
    settings: Settings,
    options: FitOptions,
) -> tuple[CurvatureSum, int]:
    """Every ordered pair of the data set; features are kept, or spilled to a temporary file."""
    with FeatureStore(options.memory_bytes) as store:
        for number, (h, labels) in enumerate(features):
            store.append(h, labels, where=_where(number))
        curvature = all_pairs_curvature(
            store,
            head,
            contrast,
            settings.structure,
            reference=options.reference,
            generator=options.generator,
        )
        return curvature, len(store)


def _batch_pairs(
    features: Features,
    head: HeadJacobian,
    contrast: Contrast,
    settings: Settings,
    _options: FitOptions,
) -> tuple[CurvatureSum, int]:
    """The mean over batches, weighted by their points, of each batch's own pair curvature."""
    n_points, total = 0, None
    for number, (h, labels) in enumerate(features):
        check_shapes(h, labels, where=_where(number))
        check_finite(h, where=_where(number))
        try:
            value = _one_batch(h, labels, head, contrast, settings).scaled(len(labels))
        except LabelError as error:
            raise LabelError(f"loader batch {number}: {error}") from error
        n_points, total = n_points + len(labels), value if total is None else total + value
    assert total is not None
    return total.scaled(1 / n_points), n_points


def _one_batch(
    h: Tensor, labels: Tensor, head: HeadJacobian, contrast: Contrast, settings: Settings
) -> Any:
    structure = settings.structure
    if not callable(settings.pairs):
        return batch_curvature(h, head, contrast, structure, labels=labels)
    indices = tuple(index.to(h.device) for index in settings.pairs(head.raw(h), labels))
    return batch_curvature(h, head, contrast, structure, indices_tuple=indices)


def _posterior(
    head: HeadJacobian, curvature: CurvatureSum, n_points: int, settings: Settings
) -> Posterior:
    n_effective = float(n_points) if settings.n_effective is None else settings.n_effective
    spectral = curvature.decompose(settings.positivity)
    return Posterior(head.parameters, spectral, n_effective, settings.prior_precision)


def warn_if_degenerate(contrast: Contrast, posterior: Posterior) -> None:
    """Warn when the curvature says nothing, so that the posterior is nearly the prior."""
    curvature = posterior.curvature
    gained = posterior.n_effective * float(curvature.eigenvalues.max())
    if contrast.vanishes:
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
        stacklevel=4,
    )
