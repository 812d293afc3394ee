"""Run a model once over items, and keep what it gives at a head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from laplace_metric._utils.progress import tqdm
from laplace_metric.heads._capture import SeenInputs, capture
from laplace_metric.heads._locate import locate_head
from laplace_metric.heads._located import HeadActivations, LocatedHead
from laplace_metric.heads._repeatable import check_repeatable
from laplace_metric.inputs._rows import rows_before
from laplace_metric.models._calling import to_device
from laplace_metric.models._modules import device_of


def seen_at(
    model: nn.Module,
    head: LocatedHead | nn.Module | str | None,
    inputs: Sequence[Any],
    *,
    progress: bool,
) -> list[SeenInputs]:
    """Run the model once over batches of inputs and return what it gives at a head.

    Parameters
    ----------
    head : LocatedHead, or what ``locate_head`` takes
        The head, or how it is found in the first batch.
    """
    device, seen = device_of(model), list[SeenInputs]()
    start = 0
    for batch in tqdm(inputs, desc="Embedding", disable=not progress):
        there = to_device(batch, device)
        with rows_before(start):
            if not isinstance(head, LocatedHead):
                head, activations = locate_head(model, there, head)
                check_repeatable(model, head, there, activations)
            else:
                activations = capture(model, head, there)
        start += len(activations.features)
        seen.append(SeenInputs(head, len(activations.features), partial(_itself, activations)))
    return seen


def _itself(activations: HeadActivations) -> HeadActivations:
    return activations
