"""Read relevance judgements: for each query the ids of all items that are a match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.inputs._columns import Column


def read_id_lists(name: str, lists: Any) -> list[Column]:
    """Return the ids of each list.

    Parameters
    ----------
    name : str
        Name of the argument, for errors.
    lists : sequence of lists
        Ids, whole numbers or strings, for each query; an empty list for none.

    Raises
    ------
    InputError
        For what is no list of lists, and for numbers next to strings.

    Examples
    --------
    >>> [len(ids) for ids in read_id_lists("matches", [[3, 5], []])]
    [2, 0]
    """
    if isinstance(lists, (str, bytes)) or not isinstance(lists, Sequence):
        raise InputError(
            f"{name} is a {type(lists).__name__}: pass a list with a list of ids for each query."
        )
    columns = [_ids(f"{name}[{query}]", named) for query, named in enumerate(lists)]
    if len({column.is_text for column in columns if len(column)}) > 1:
        raise InputError(f"{name} hold numbers and strings: pass ids as those of the index.")
    return columns


def _ids(name: str, named: Any) -> Column:
    if isinstance(named, (str, bytes)) or not hasattr(named, "__len__"):
        raise InputError(f"{name} is {named!r:.40}: pass a list of ids, an empty one for none.")
    return Column.of(name, named if isinstance(named, (Tensor, np.ndarray)) else list(named))
