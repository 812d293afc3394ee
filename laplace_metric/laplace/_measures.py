"""Numbers instead of distributions: of a loader, of pairs of inputs, of a validation set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.validation import check_function, check_name
from laplace_metric.embedding import Embedding, epistemic_number, label_entropy
from laplace_metric.errors import InputError
from laplace_metric.laplace._distances import squared_distance
from laplace_metric.laplace._fitted import Fitted, predicted_embedding, seen_at_head
from laplace_metric.laplace._pair_moments import Distance, EmbeddingPairs
from laplace_metric.laplace._posterior import covariance
from laplace_metric.laplace._traces import traced, traces_of
from laplace_metric.models import (
    device_of,
    input_batches,
    labelled_batches,
)
from laplace_metric.models.heads import HeadActivations, check_rows

Metric = Callable[[Embedding, Tensor], float]
"""(embeddings of N inputs, labels [N]) -> score, higher is better."""


def uncertainties_of(
    model: nn.Module, fitted: Fitted, loader: Iterable[Any], *, kind: str, progress: bool
) -> Tensor:
    """Compute one number [N] for each input of a loader: see ``LaplaceEmbedder.uncertainties``.

    Raises
    ------
    UnknownNameError
        For a kind that does not exist.
    """
    check_name("kind", kind, ("uncertainty", "epistemic", "ambiguity"))
    of_fit_set = label_entropy if kind == "ambiguity" else epistemic_number
    traces, spherical = traces_of(fitted.jacobian, fitted.posterior), fitted.spherical
    device, title = device_of(model), "Uncertainties"
    parts = []
    for inputs in input_batches(loader, device, progress=progress, description=title):
        seen = seen_at_head(model, fitted, inputs)
        if kind != "uncertainty":
            check_rows(seen.raw, spherical=spherical)
            parts.append(of_fit_set(fitted.near_far, seen.features))
            continue
        with full_precision():
            parts.append(traced(traces, seen.features, seen.raw, spherical=spherical))
            check_rows(seen.raw, parts[-1], spherical=spherical)
    return torch.cat(parts)


@full_precision()
def distance_of(
    a: HeadActivations, b: HeadActivations, fitted: Fitted, *, shared_weights: bool
) -> Distance:
    """Compute the moments of the squared distance between the rows of two batches.

    Raises
    ------
    InputError
        If the batches have different lengths, or rows without a direction.
    """
    if len(a.raw) != len(b.raw):
        raise InputError(f"x has {len(a.raw)} rows and y {len(b.raw)}: pass pairs, row by row.")
    head, posterior, spherical = fitted.jacobian, fitted.posterior, fitted.spherical
    xx, yy = (covariance(head, posterior, side.features) for side in (a, b))
    both = (a.features, b.features)
    xy = covariance(head, posterior, *both) if shared_weights else None
    pairs = EmbeddingPairs(a.raw, b.raw, xx, yy, xy)
    squared = squared_distance(pairs, spherical=spherical, exact=True)
    check_rows(b.raw, spherical=spherical)
    check_rows(a.raw, squared.mean, squared.variance, spherical=spherical)
    return squared


def validation_score(
    model: nn.Module,
    fitted: Fitted,
    loader: Iterable[Any] | None,
    metric: Metric | None,
    *,
    progress: bool,
) -> Callable[[float, float], float]:
    """Return the function (prior precision, n_effective) -> metric on the inputs of a loader.

    Raises
    ------
    InputError
        Without loader and metric, or if the metric returns no number.
    """
    if loader is None or metric is None:
        raise InputError("method='validation' needs loader= and metric=.")
    check_function("metric", metric, "embedding", "labels")
    device = device_of(model)
    batches = labelled_batches(loader, device, progress=progress, description="Validating")
    pairs = [(seen_at_head(model, fitted, inputs), labels) for inputs, labels in batches]
    activations = HeadActivations.concatenate([seen for seen, _ in pairs])
    target = torch.cat([y for _, y in pairs])

    def score(tau: float, n_effective: float) -> float:
        tuned = fitted.with_precision(tau, n_effective)
        embedding = predicted_embedding(activations.features, activations.raw, tuned)
        value = metric(embedding, target)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"metric gave {value!r:.60}: let it return one number, higher is better."
            ) from error

    return score
