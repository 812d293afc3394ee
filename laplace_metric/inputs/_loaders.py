"""Read loaders, and data sets of single items as loaders of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from laplace_metric.errors import InputError
from laplace_metric.inputs._arrays import is_number
from laplace_metric.inputs._batches import split_batch

BATCH_OF_ITEMS = 256
"""Items of a data set that enter a model at once."""
BATCH_OF_IMAGES = 64
"""The same of our own image sets: inside a network, photographs are large."""


def yields_items(data: Any) -> bool:
    """Return whether a data set gives one item with its label at a time, not batches of them.

    Seen at its first item: a label that is one number or one name. Our own data sets, such as
    ``datasets.ImageFolder``, are known by their ``loader``.

    Examples
    --------
    >>> x, y = torch.ones(4, 2), torch.arange(4)
    >>> yields_items(torch.utils.data.TensorDataset(x, y)), yields_items([(x, y)])
    (True, False)
    """
    if isinstance(data, (str, bytes, Tensor, np.ndarray, Mapping)) or hasattr(data, "nnz"):
        return False  # a sparse matrix has no length: who reads it says so
    if _has_loader(data):
        return True
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")) or not len(data):
        return False
    try:
        first = data[0]
    except (LookupError, TypeError):
        return False
    item, label = split_batch(first)
    if isinstance(first, (tuple, list)) and (
        is_number(item) or (isinstance(item, str) and isinstance(data, (list, tuple)))
    ):
        return False  # two numbers, or a batch of two texts
    if isinstance(label, (Tensor, np.ndarray)):
        return label.ndim == 0
    return isinstance(label, (str, int, np.integer)) and not isinstance(label, bool)


def yields_pairs(data: Any) -> bool:
    """Return whether data are a loader of batches, at a glance and without going through them.

    Examples
    --------
    >>> x, y = torch.ones(4, 2), torch.arange(4)
    >>> yields_pairs([(x, y)]), yields_pairs([x])
    (True, False)
    """
    if isinstance(data, DataLoader) or not isinstance(data, list) or not data:
        return isinstance(data, DataLoader)
    first = data[0]
    pair = isinstance(first, tuple) and len(first) == 2
    return pair and isinstance(first[1], Tensor) and first[1].ndim == 1


def _has_loader(data: Any) -> bool:
    return hasattr(data, "__len__") and callable(getattr(data, "loader", None))


def items_of(loader: Any) -> int | None:
    """Return how many items the batches of a loader hold; None where it does not say.

    Examples
    --------
    >>> items_of(DataLoader([0] * 700, batch_size=64)), items_of([torch.ones(5)])
    (700, None)
    """
    if not isinstance(loader, DataLoader):
        n: int | None = getattr(loader, "n_items", None)
        return n
    if loader.batch_size is None or not isinstance(loader.sampler, Sized):
        return None
    n = len(loader.sampler)
    return n - n % loader.batch_size if loader.drop_last else n


def as_batches(data: Any) -> Any:
    """Return a data set of single items as a loader of batches, in their order; else the data.

    Parameters
    ----------
    data : data set or loader
        A torch Dataset, or anything with a length whose items are ``(input, label)`` or mappings,
        or that has a function ``loader`` of the batch size; or a loader.

    Raises
    ------
    InputError
        When read, for items that are no tensors, arrays, numbers or strings of one shape.

    Examples
    --------
    >>> data = torch.utils.data.TensorDataset(torch.ones(300, 2), torch.arange(300))
    >>> [len(labels) for _, labels in as_batches(data)]
    [256, 44]
    """
    if not yields_items(data):
        return data
    if _has_loader(data):
        return data.loader(BATCH_OF_IMAGES)
    own = torch.Generator()  # a DataLoader draws a seed each time that it is read
    return DataLoader(data, batch_size=BATCH_OF_ITEMS, collate_fn=_collated, generator=own)


def _collated(items: list[Any]) -> Any:
    try:
        return default_collate(items)
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"items of the data set cannot be put together to a batch ({error}): give it a "
            "transform that makes tensors of one shape, or pass a DataLoader with its own "
            "collate_fn."
        ) from error
