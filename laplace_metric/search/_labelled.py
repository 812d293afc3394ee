"""Inputs with labels beside them, or data sets of single items, as ``(inputs, labels)`` batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from laplace_metric.errors import InputError, LabelError
from laplace_metric.models import ItemBatches, check_labels, is_rows, plain, yields_items
from laplace_metric.search._encoding import batches, count_of_batches


class LabelledInputs:
    """Batches of inputs, each with its part of ``labels`` [N]; read once or often.

    Parameters
    ----------
    inputs : an array, a data frame, a list of rows or texts, a mapping, or a loader of batches
    labels : [N] whole numbers or names of classes

    Raises
    ------
    LabelError
        For labels that are neither; when read, for another number of labels than of inputs.
    InputError
        When read, for inputs that are none of these.

    Examples
    --------
    >>> [len(codes) for _, codes in LabelledInputs(np.ones((300, 2)), ["a", "b"] * 150)]
    [256, 44]
    """

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels = inputs, check_labels(labels)

    def __len__(self) -> int:
        return count_of_batches(self.inputs) or 0

    @property
    def n_items(self) -> int:
        """Of all batches."""
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        start, n = 0, len(self.labels)
        for batch, _ in batches("inputs", self.inputs):
            stop = start + n_rows(batch)
            if stop > n:
                break
            yield batch, self.labels[start:stop]
            start = stop
        else:
            stop = start
        if stop != n:
            at_least = "" if stop < n else "at least "
            raise LabelError(
                f"labels has {n} entries for {at_least}{stop} inputs: pass one for each."
            )


def labelled_loader(inputs: Any, labels: Any = None) -> Any:
    """A loader of ``(inputs, labels)`` batches; what is one already, as it is.

    Raises
    ------
    LabelError
        For arrays without labels, and as ``LabelledInputs``.

    Examples
    --------
    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.arange(4))
    >>> [labels.tolist() for _, labels in labelled_loader(data)]
    [[0, 1, 2, 3]]
    """
    if labels is not None:
        return LabelledInputs(inputs, labels)
    if isinstance(plain(inputs), (Tensor, np.ndarray)) or is_rows(inputs):
        raise LabelError(
            f"inputs are a {type(inputs).__name__} without labels: pass fit(inputs, labels)."
        )
    if isinstance(inputs, Mapping):
        return [inputs]
    return ItemBatches(inputs) if yields_items(inputs) else inputs


def n_rows(batch: Any) -> int:
    """Items of a batch of inputs.

    Raises
    ------
    InputError
        For what has no length.
    """
    rows = next(iter(batch.values()), None) if isinstance(batch, Mapping) else batch
    try:
        return len(rows)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(
            f"inputs hold a batch that is a {type(rows).__name__}, which has no rows: pass arrays, "
            "lists of texts, or mappings of them."
        ) from error
