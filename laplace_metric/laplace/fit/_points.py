"""Inputs of the head at every point of a loader; points that a store holds already are skipped.

The batches of a resumed fit must be those of the fit that was killed: they are compared by their
labels, and the last of them by its features, too. So are those of a fit that was finished: the
first one alone says nothing of what comes behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import InputError
from laplace_metric.heads._capture import capture
from laplace_metric.heads._located import LocatedHead
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.inputs._rows_in_errors import rows_before
from laplace_metric.laplace.fit._fit_storage import FitStorage
from laplace_metric.models._feature_store import FeatureStore

Batches = Iterator[tuple[ModelInput, Tensor]]
HeadBatches = Iterator[tuple[Tensor, Tensor]]
"""h [B, D] and labels [B] of one batch after the other."""
SAME = 1e-2
"""Relative difference of features that only rounding explains, on any device."""


def where(number: int) -> str:
    """Return the name of a batch's features in errors."""
    return f"the head's input in loader batch {number}"


def collect_points(
    model: nn.Module,
    head: LocatedHead,
    batches: Batches,
    features: Tensor | None,
    store: FeatureStore,
    storage: FitStorage,
) -> None:
    """Run the model over the batches that the store does not hold yet, and append what it gives.

    Parameters
    ----------
    model : nn.Module
        Inputs -> embeddings.
    head : LocatedHead
        The layer whose inputs are stored.
    batches : iterator of (inputs, labels)
        All batches, the first one included.
    features : Tensor [B, D] or None
        Inputs of the head on the first batch, by which the head was located. None if this process
        has no batch.
    store : FeatureStore
        Store to append to: empty, or with the points that an earlier process committed.
    storage : FitStorage
        Storage that decides when the points are committed.

    Raises
    ------
    InputError
        If the loader's batches are not those that the store was filled with.
    """
    complete = store.exhausted
    unread = _unread(model, head, batches, features, store)
    for number, (h, labels) in enumerate(unread):
        with rows_before(len(store)):
            store.append(h, labels, where=where(number))
        if storage.due():
            store.commit()
    if not complete:
        store.complete()


def _unread(
    model: nn.Module,
    head: LocatedHead,
    batches: Batches,
    features: Tensor | None,
    store: FeatureStore,
) -> HeadBatches:
    """Yield h and labels of the batches behind those that the store holds.

    Those that it holds are compared by their labels, and the last of them by its features. Of a
    store that has all batches, the features of the first one are compared, too; the model does not
    run on the others, and one more than these is another fit.

    Raises
    ------
    InputError
        If they differ.
    """
    known, complete = store.labels.cpu() if len(store) else torch.empty(0), store.exhausted
    n_read = 0
    for inputs, labels in batches:
        start, n_read = n_read, n_read + len(labels)
        new = start >= len(known) and not complete
        h, features = features, None  # of the first batch it is there already
        if h is None and (new or n_read == len(known)):
            with rows_before(start):
                h = at_least_float32(capture(model, head, inputs).features)
        if new:
            assert h is not None
            yield h, labels
            continue
        same = torch.equal(known[start:n_read], labels.cpu())
        if same and h is not None and (complete or n_read == len(known)):
            same = _same_features(store, slice(start, n_read), h)
        if not same:
            raise InputError(_other_batches(n_read))
    if n_read < len(known):
        raise InputError(_other_batches(n_read))


def _same_features(store: FeatureStore, part: slice, features: Tensor) -> bool:
    stored = store.rows(torch.arange(part.start, part.stop)).to(features)
    return float((stored - features).norm()) <= SAME * float(features.norm())


def _other_batches(n_read: int) -> str:
    return (
        f"the loader's batches differ from those in checkpoint_dir (up to point {n_read}): resume "
        "with the same data in the same order and batch size (shuffle=False, or the same seed), "
        "or choose an empty folder."
    )
