"""The score of a fit on validation data, as a function of its precision and temperature."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from laplace_metric._utils.validation import check_function
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._located import HeadActivations
from laplace_metric.inputs import Inputs
from laplace_metric.inputs._rows import rows_before
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._predicted import predicted_embedding, seen_at_head
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._modules import device_of

Metric = Callable[[Embedding, Tensor], float]
"""(embeddings of N inputs, labels [N]) -> score, higher is better."""
Score = Callable[[float, float, float], float]
"""(prior precision, n_effective, temperature) -> score, higher is better."""


def validation_score(
    model: nn.Module,
    fitted: Fitted,
    labelled: Inputs | None,
    metric: Metric | None,
    *,
    progress: bool,
) -> Score:
    """Return the function (prior precision, n_effective, temperature) -> metric on labelled inputs.

    Raises
    ------
    InputError
        Without loader and metric, or if the metric returns no number.
    """
    if labelled is None or metric is None:
        raise InputError("method='validation' needs loader= and metric=.")
    check_function("metric", metric, "embedding", "labels")
    device = device_of(model)
    batches = labelled_batches(labelled, device, progress=progress, description="Validating")
    seen: list[HeadActivations] = []
    target = torch.empty(0, dtype=torch.int64, device=device)
    for inputs, labels in batches:
        with rows_before(len(target)):
            seen.append(seen_at_head(model, fitted, inputs))
        target = torch.cat([target, labels])
    activations = HeadActivations.concatenate(seen)

    def score(tau: float, n_effective: float, temperature: float) -> float:
        tuned = fitted.with_precision(tau, n_effective).with_temperature(temperature)
        embedding = predicted_embedding(activations.features, activations.raw, tuned)
        value = metric(embedding, target)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"metric gave {value!r:.60}: let it return one number, higher is better."
            ) from error

    return score
