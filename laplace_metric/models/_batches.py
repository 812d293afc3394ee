"""Go through the batches of a call on the device of a model, with a progress bar."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from laplace_metric._utils.progress import ItemBar
from laplace_metric.errors import EmptyLoaderError
from laplace_metric.inputs import Batch, Inputs, ModelInput
from laplace_metric.inputs._batches import rows_of_batch
from laplace_metric.models._call_model import to_device

_LOG = logging.getLogger(__name__)


def _shown_batches(
    inputs: Inputs,
    *,
    progress: bool,
    description: str,
    status: Callable[[], str] | None = None,
) -> Iterator[Batch]:
    """Yield each batch, and move the bar on when the next one is asked for."""
    n_batches, start, bar = 0, time.perf_counter(), None
    if progress:
        bar = ItemBar(description, inputs.count, inputs.n_batches)
    with bar or nullcontext():
        for n_batches, batch in enumerate(inputs, 1):  # noqa: B007 (reported below)
            yield batch
            if bar is not None:
                n_items = rows_of_batch(batch.inputs) if batch.labels is None else len(batch.labels)
                bar.advance(n_items, "" if status is None else status())
    _LOG.debug("%s: %d batches in %.1f s", description, n_batches, time.perf_counter() - start)
    if n_batches == 0:
        raise EmptyLoaderError(
            "the inputs yielded no batch: pass at least one item. A generator can be read once: "
            "pass a list of its batches or a DataLoader, or make it anew."
        )


def input_batches(
    inputs: Inputs, device: torch.device, *, progress: bool, description: str
) -> Iterator[ModelInput]:
    """Yield the inputs of each batch on one device, whether or not labels come with them.

    Raises
    ------
    EmptyLoaderError
        If there are no batches.

    Examples
    --------
    >>> from laplace_metric.inputs import read_inputs
    >>> x = torch.ones(2, 3)
    >>> loader = read_inputs("loader", [x, (x, torch.tensor([0, 1])), (x, x)])
    >>> [type(inputs).__name__ for inputs in input_batches(loader, x.device, progress=False,
    ...                                                    description="Reading")]
    ['Tensor', 'Tensor', 'tuple']
    """
    for batch in _shown_batches(inputs, progress=progress, description=description):
        yield to_device(batch.inputs, device)


def labelled_batches(
    inputs: Inputs,
    device: torch.device,
    *,
    progress: bool,
    description: str,
    status: Callable[[], str] | None = None,
) -> Iterator[tuple[ModelInput, Tensor]]:
    """Yield the inputs and the labels [B] int64 of each batch on one device, with a progress bar.

    Parameters
    ----------
    inputs : Inputs
        Labelled inputs; class names are given as their codes.
    device : torch.device
        Device of the model.
    progress : bool
        Show a bar.
    description : str
        Title of the bar.
    status : function, optional
        Returns what the bar shows after each batch.

    Raises
    ------
    EmptyLoaderError
        If there are no batches.
    LabelError
        For labels that are missing or no classes.
    InputError
        For what cannot be read.
    """
    assert inputs.labelled
    shown = _shown_batches(inputs, progress=progress, description=description, status=status)
    for batch in shown:
        yield to_device(batch.inputs, device), batch.labels.to(device)
