"""Inputs of a model under a fit: embeddings, uncertainties, distances."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric._utils.validation import check_name
from laplace_metric.distributions import Covariance, Gaussian, ProjectedNormal
from laplace_metric.distributions._covariance import PendingCovariance
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._capture import capture
from laplace_metric.heads._located import HeadActivations
from laplace_metric.heads._row_checks import check_rows
from laplace_metric.inputs import Inputs, ModelInput
from laplace_metric.inputs._rows_in_errors import rows_before
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._predictive_covariance import covariance, covariances_of_pairs
from laplace_metric.laplace._traces import traced, traces_of
from laplace_metric.laplace.distance._embedding_pairs import EmbeddingPairs
from laplace_metric.laplace.distance._squared_distance import Distance, squared_distance
from laplace_metric.models._batches import input_batches
from laplace_metric.models._call_model import to_device
from laplace_metric.models._modules import device_of


def seen_at_head(model: nn.Module, fitted: Fitted, inputs: ModelInput) -> HeadActivations:
    """Run the model once and return what enters its head [B, D] and what leaves it [B, Z]."""
    seen = capture(model, fitted.head, to_device(inputs, device_of(model)))
    h, z = at_least_float32(seen.features), at_least_float32(seen.raw)
    return HeadActivations(h, z, seen.output)


def predicted_embedding(h: Tensor, raw: Tensor, fitted: Fitted) -> Embedding:
    """Build the embedding of h and z; it computes its covariance when it is first read."""
    kind, near_far = ProjectedNormal if fitted.spherical else Gaussian, fitted.near_far
    check_rows(raw, spherical=fitted.spherical)
    spread = PendingCovariance(raw.shape, partial(_covariance, h, raw, fitted))
    inputs = None if near_far is None else h
    return Embedding(kind(raw, spread), head_inputs=inputs, near_far=near_far)


@full_precision()
def _covariance(h: Tensor, raw: Tensor, fitted: Fitted) -> Covariance:
    """Compute the covariance of raw embeddings.

    Raises
    ------
    NonFiniteError
        If a variance overflows.
    """
    spread = covariance(fitted.jacobian, fitted.posterior, h)
    trace = spread.trace()
    most = trace / raw.square().sum(-1) if fitted.spherical else trace  # of any variance
    check_rows(raw, most, spherical=fitted.spherical)
    return spread


def uncertainties_of(
    model: nn.Module, fitted: Fitted, inputs: Inputs, *, kind: str, progress: bool
) -> Tensor:
    """Compute one number [N] for each input: see ``LaplaceEmbedder.uncertainties``.

    Raises
    ------
    UnknownNameError
        For a kind that does not exist.
    """
    check_name("kind", kind, ("uncertainty", "epistemic", "ambiguity"))
    traces, spherical = traces_of(fitted.jacobian, fitted.posterior), fitted.spherical
    device, title = device_of(model), "Uncertainties"
    parts: list[Tensor] = []

    def numbers(inputs: ModelInput) -> Tensor:
        seen = seen_at_head(model, fitted, inputs)
        if kind != "uncertainty":
            found: Tensor = getattr(predicted_embedding(seen.features, seen.raw, fitted), kind)
            return found
        with full_precision():
            trace = traced(traces, seen.features, seen.raw, spherical=spherical)
            check_rows(seen.raw, trace, spherical=spherical)
            return trace

    for batch in input_batches(inputs, device, progress=progress, description=title):
        with rows_before(sum(map(len, parts))):
            parts.append(numbers(batch))
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
    x, y = a.features, b.features
    if shared_weights:
        of_pairs = covariances_of_pairs(head, posterior, x, y, spherical=spherical)
        pairs = EmbeddingPairs(a.raw, b.raw, *of_pairs)
    else:
        xx, yy = (covariance(head, posterior, side) for side in (x, y))
        pairs = EmbeddingPairs(a.raw, b.raw, xx, yy, None)
    squared = squared_distance(pairs, spherical=spherical, exact=True)
    check_rows(b.raw, spherical=spherical)
    check_rows(a.raw, squared.mean, squared.variance, spherical=spherical)
    return squared
