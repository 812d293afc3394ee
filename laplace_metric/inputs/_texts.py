"""Read texts from whatever holds them, as one list: a text is never read as a batch of letters."""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.inputs._arrays import plain
from laplace_metric.inputs._missing import missing_rows
from laplace_metric.inputs._rows_in_errors import named_rows

BATCH_OF_TEXTS = 256
"""Texts of an iterable that enter a model at once."""


def gathered_texts(name: str, inputs: Any) -> Any:
    """Return texts as a list, in their order; everything else as it is.

    Parameters
    ----------
    name : str
        The argument, for errors.
    inputs : any iterable
        Texts in a list, tuple, array, series or deque, in the values or keys of a dict, from a map
        or a generator, or the lines of an open file, whose line ends are left out. An iterator of
        anything else is returned with the entry that was looked at.

    Raises
    ------
    InputError
        For one text alone, for bytes, for a set, which has no order, for a dict of single texts and
        its ``items()``, and for entries that are missing or are no texts among texts; it names the
        rows.

    Examples
    --------
    >>> gathered_texts("queries", {"a": "one text", "b": "another"}.values())
    ['one text', 'another']
    >>> gathered_texts("queries", [[0.5, 1.0]])
    [[0.5, 1.0]]
    """
    if isinstance(inputs, Mapping):
        return _of_mapping(name, inputs)
    if isinstance(inputs, Tensor):
        return inputs
    _check_kind(name, inputs)
    inputs = plain(inputs)
    if isinstance(inputs, np.ndarray):
        return _of_array(name, inputs)
    if isinstance(inputs, (list, tuple)):
        return _of_sequence(name, inputs)
    if hasattr(inputs, "readlines"):  # an open file
        return _checked(name, [_without_end(name, line) for line in inputs])
    if isinstance(inputs, Iterator):
        first = list(_first(inputs))
        whole = chain(first, inputs)
        return _checked(name, list(whole)) if first and isinstance(first[0], str) else whole
    if isinstance(inputs, Collection) and any(isinstance(x, str) for x in _first(inputs)):
        return _checked(name, list(inputs))
    return inputs


def grouped_texts(name: str, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches as they come; texts that come one by one in lists of ``BATCH_OF_TEXTS``.

    Raises
    ------
    InputError
        If some entries are single texts and others are not.

    Examples
    --------
    >>> list(grouped_texts("queries", iter(["one text", "another"])))
    [['one text', 'another']]
    """
    texts, others = list[str](), 0
    for batch in batches:
        single = isinstance(batch, str)
        if (single and others) or (not single and texts):
            raise InputError(f"{name} holds single texts and batches: pass one list of texts.")
        if not single:
            others += 1
            yield batch
            continue
        texts.append(batch)
        if len(texts) > BATCH_OF_TEXTS:
            yield texts[:BATCH_OF_TEXTS]
            texts = texts[BATCH_OF_TEXTS:]
    if texts:
        yield texts


def _check_kind(name: str, inputs: Any) -> None:
    if isinstance(inputs, str):
        raise InputError(
            f"{name} is a str, one text: pass a list of texts, [text] for one. For the images of a "
            "folder pass datasets.load_folder(path)."
        )
    if isinstance(inputs, (bytes, bytearray)):
        raise InputError(f"{name} is {type(inputs).__name__}: pass a list of texts (str).")
    if isinstance(inputs, (set, frozenset)):
        raise InputError(
            f"{name} is a {type(inputs).__name__}, which has no order, so that answers cannot be "
            "told apart: pass a list."
        )
    if isinstance(inputs, ItemsView):
        raise InputError(f"{name} is dict.items(): pass the values() alone, keys as ids=.")


def _of_mapping(name: str, inputs: Mapping[Any, Any]) -> Mapping[Any, Any]:
    if inputs and all(isinstance(value, str) for value in inputs.values()):
        raise InputError(
            f"{name} is a mapping of single texts: pass its values(), and its keys as ids=."
        )
    return inputs


def _of_array(name: str, array: np.ndarray[Any, Any]) -> Any:
    kind = array.dtype.kind
    if kind == "S":
        raise InputError(f"{name} holds bytes ({array.dtype}): decode them, array.astype(str).")
    texts = kind in "UT" or (kind == "O" and any(isinstance(x, str) for x in array.flat))
    if not texts:
        return array
    if array.ndim == 2 and array.shape[1] == 1:  # one column of a frame
        array = array[:, 0]
    if array.ndim == 0:
        _check_kind(name, str(array[()]))
    if array.ndim != 1:
        raise InputError(
            f"{name} has texts in an array of shape {array.shape}: pass one text an item, [N], or "
            "columns of numbers alone."
        )
    return _checked(name, array.tolist())


def _of_sequence(name: str, inputs: list[Any] | tuple[Any, ...]) -> Any:
    """Return texts as a list; a tuple of anything else is several arguments, or a pair."""
    if isinstance(inputs, tuple):
        texts = bool(inputs) and all(isinstance(x, str) for x in inputs)
        return list(inputs) if texts else inputs
    return _checked(name, inputs) if any(isinstance(x, str) for x in inputs) else inputs


def _checked(name: str, values: list[Any]) -> list[str]:
    bad = [row for row, value in enumerate(values) if not isinstance(value, str)]
    if not bad:
        return values
    missing, named = missing_rows(values), named_rows(bad, len(values))
    if missing == bad:
        raise InputError(f"{name}: the text is missing in {named}: leave them out.")
    kind = type(values[next(row for row in bad if row not in missing)]).__name__
    raise InputError(f"{name} is a {kind}, not a text, in {named}: pass texts alone.")


def _without_end(name: str, line: Any) -> str:
    if not isinstance(line, str):
        raise InputError(f"{name} is a file of bytes: open it as text, open(path).")
    return line.rstrip("\r\n")


def _first(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the first entry, if there is one."""
    for value in values:
        yield value
        return
