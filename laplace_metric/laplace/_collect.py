"""Features of a loader: the model runs once over it, its head's inputs go to a store.

A durable store keeps what it had when the process ended; batches that it holds are skipped, and
checked by their labels and by the features of the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import InputError
from laplace_metric.models.features import FeatureStore
from laplace_metric.models.heads import LocatedHead, capture

Batches = Iterator[tuple[Any, Tensor]]
SAME = 1e-2
"""Relative difference of features that only rounding explains, on any device."""


def features_of(model: nn.Module, head: LocatedHead, inputs: Any) -> Tensor:
    """h [B, D] of a batch, float32 at least."""
    return at_least_float32(capture(model, head, inputs).features)


def where(number: int) -> str:
    """What an error calls the features of a batch."""
    return f"the head's input in loader batch {number}"


def collect_features(
    model: nn.Module,
    head: LocatedHead,
    batches: Batches,
    store: FeatureStore,
    due: Callable[[], bool] = lambda: False,
) -> None:
    """Run the model over the batches that the store does not hold yet.

    Parameters
    ----------
    due : whether to commit the store now, asked after every batch

    Raises
    ------
    InputError
        If the loader's batches are not those that the store was filled with.
    """
    if store.exhausted:
        _check_first(store, model, head, batches)
        return
    for number, (inputs, labels) in enumerate(_after(store, model, head, batches)):
        store.append(features_of(model, head, inputs), labels, where=where(number))
        if due():
            store.commit()
    store.complete()


def _check_first(
    store: FeatureStore, model: nn.Module, head: LocatedHead, batches: Batches
) -> None:
    """Of a loader that was read to its end, the first batch is compared; the rest is not read."""
    first = next(batches, None)
    n = 0 if first is None else len(first[1])
    same = n <= len(store) and (first is None) == (len(store) == 0)
    if first is not None and same:
        inputs, labels = first
        same = torch.equal(store.labels[:n].cpu(), labels.cpu())
        same = same and _same_features(store, slice(0, n), features_of(model, head, inputs))
    if not same:
        raise InputError(_other_batches(n))


def _after(store: FeatureStore, model: nn.Module, head: LocatedHead, batches: Batches) -> Batches:
    """The batches behind those that the store holds."""
    known, seen = store.labels.cpu() if len(store) else torch.empty(0), 0
    for inputs, labels in batches:
        if seen == len(known):
            yield inputs, labels
            continue
        part = slice(seen, seen + len(labels))
        seen = part.stop
        same = torch.equal(known[part], labels.cpu())
        if same and seen == len(known):
            same = _same_features(store, part, features_of(model, head, inputs))
        if not same:
            raise InputError(_other_batches(seen))
    if seen < len(known):
        raise InputError(_other_batches(seen))


def _same_features(store: FeatureStore, part: slice, features: Tensor) -> bool:
    there = store.rows(torch.arange(part.start, part.stop)).to(features)
    return float((there - features).norm()) <= SAME * float(features.norm())


def _other_batches(seen: int) -> str:
    return (
        f"the loader's batches differ from those in checkpoint_dir (up to point {seen}): resume "
        "with the same data in the same order and batch size (shuffle=False, or the same seed), "
        "or choose an empty folder."
    )
