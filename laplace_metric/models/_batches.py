"""Go through batches on the device of a model, with a progress bar."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from laplace_metric._utils.progress import ItemBar
from laplace_metric.errors import EmptyLoaderError, InputError
from laplace_metric.inputs._batches import ModelInput, labelled_parts, labels_of, rows_of_batch
from laplace_metric.inputs._class_names import note_names
from laplace_metric.inputs._labels import check_labels
from laplace_metric.inputs._loaders import as_batches, items_of
from laplace_metric.inputs._rows import rows_before
from laplace_metric.inputs._texts import gathered_texts, grouped_texts
from laplace_metric.models._calling import to_device

_LOG = logging.getLogger(__name__)
Read = TypeVar("Read")


def _read(
    loader: Iterable[Any],
    read: Callable[[int, Any], tuple[Read, int]],
    *,
    progress: bool,
    description: str,
    status: Callable[[], str] | None = None,
) -> Iterator[Read]:
    """Read each batch of a loader: ``read(index, batch)`` gives a value and its number of items."""
    try:
        batches = grouped_texts("loader", iter(loader))
    except TypeError as error:
        raise InputError(
            f"loader is a {type(loader).__name__}: pass an iterable of batches ({error})."
        ) from error
    index, start, bar = -1, time.perf_counter(), None
    if progress:
        bar = ItemBar(description, items_of(loader), operator.length_hint(loader) or None)
    with bar or nullcontext():
        for index, batch in enumerate(batches):
            value, n_items = read(index, batch)
            yield value
            if bar is not None:
                bar.advance(n_items, "" if status is None else status())
    _LOG.debug("%s: %d batches in %.1f s", description, index + 1, time.perf_counter() - start)
    if index < 0:
        raise EmptyLoaderError("the inputs yielded no batch: pass at least one item.")


def input_batches(
    loader: Iterable[Any], device: torch.device, *, progress: bool, description: str
) -> Iterator[ModelInput]:
    """The inputs of each batch, on one device, whether or not labels come with them.

    Raises
    ------
    EmptyLoaderError
        For a loader without batches.
    InputError
        For a tensor or a mapping (one batch, where many are asked for), or nothing iterable.

    Examples
    --------
    >>> x = torch.ones(2, 3)
    >>> loader = [x, (x, torch.tensor([0, 1])), (x, x)]
    >>> [type(inputs).__name__ for inputs in input_batches(loader, x.device, progress=False,
    ...                                                    description="Reading")]
    ['Tensor', 'Tensor', 'tuple']
    """
    if isinstance(loader, (Tensor, Mapping)):
        raise InputError(f"loader is a {type(loader).__name__}: pass an iterable of batches.")

    def read(_: int, batch: Any) -> tuple[ModelInput, int]:
        inputs = labels_of(batch)[0]
        return to_device(inputs, device), rows_of_batch(inputs)

    batches = as_batches(gathered_texts("loader", loader))
    yield from _read(batches, read, progress=progress, description=description)


def labelled_batches(
    loader: Iterable[Any],
    device: torch.device,
    *,
    progress: bool,
    description: str,
    status: Callable[[], str] | None = None,
    names: dict[int, str] | None = None,
) -> Iterator[tuple[ModelInput, Tensor]]:
    """The inputs and the labels [B] int64 of each batch, on one device, with a progress bar.

    ``status()`` is what the bar says after each batch. Labels that are missing or of the wrong
    kind raise ``LabelError``. Class names are given as their codes; ``names`` gets code -> name.

    Raises
    ------
    EmptyLoaderError
        For a loader without batches.
    InputError
        If the loader is not iterable.
    """
    known, n_read = {} if names is None else names, 0

    def read(index: int, batch: Any) -> tuple[tuple[ModelInput, Tensor], int]:
        nonlocal n_read
        inputs, labels = labelled_parts(batch, index)
        with rows_before(n_read):
            checked = check_labels(labels, name=f"labels of loader batch {index}")
        n_read += len(checked)
        if known or not isinstance(labels, Tensor):
            note_names(known, labels, checked, first=index == 0)
        return (to_device(inputs, device), checked.to(device)), len(checked)

    yield from _read(loader, read, progress=progress, description=description, status=status)
