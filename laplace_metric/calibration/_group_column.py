"""Groups of queries: which of them depend on each other, read and checked."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric.errors import DependentQueriesWarning, InputError, callers_line

LEAST = 20
"""Groups, half of which or more test."""
NEARLY_ALL = 0.5
"""Share of the queries from which on one group is named."""
MISSING = ("NoneType", "NAType", "NaTType")


def read_groups(
    groups: Any, n: int, of: str = "queries", *, told: bool = False
) -> npt.NDArray[np.intp]:
    """Return the number of the group of each query [n], from 0.

    Parameters
    ----------
    groups : [n] numbers or strings
        Group of each query.
    n : int
        Number of queries.
    of : str
        Noun for them in errors. Default: "queries".
    told : bool
        Leave out the warning, which a caller has had. Default: False.

    Raises
    ------
    InputError
        For another number of groups than of queries, missing ones, names and numbers in one
        column, several columns, and fewer than 20 different groups.

    Warns
    -----
    DependentQueriesWarning
        If one group has more than half of the queries.

    Examples
    --------
    >>> read_groups([f"video {i % 20}" for i in range(40)], 40).max()
    np.int64(19)
    """
    if len(shape := getattr(groups, "shape", ())) > 1:
        raise InputError(f"groups has shape {tuple(shape)}: pass [{n}], one group for each.")
    values = groups.tolist() if hasattr(groups, "tolist") else groups
    unordered = isinstance(values, (str, bytes, Mapping, AbstractSet))
    if unordered or not hasattr(values, "__iter__"):
        raise InputError(f"groups={groups!r:.60}: pass the group of each of the {n:,} {of}.")
    listed = list(values)
    if len(listed) != n:
        raise InputError(f"groups has {len(listed):,} entries for {n:,} {of}: pass one for each.")
    numbers: dict[Any, int] = {}
    found = np.empty(n, np.intp)
    for row, name in enumerate(listed):
        if _is_missing(name):
            raise InputError(
                f"groups holds {name!r:.40} in row {row}: pass a number or name for each; one that "
                "depends on no other is a group by itself, under a name of its own."
            )
        found[row] = numbers.setdefault(name, len(numbers))
    texts = [name for name in numbers if isinstance(name, str)]
    if 0 < len(texts) < len(numbers):
        other = next(name for name in numbers if not isinstance(name, str))
        raise InputError(
            f"groups holds strings and others, {texts[0]!r:.40} and {other!r:.40}: pass one type, "
            "or '1' and 1 would be two groups."
        )
    sizes = np.bincount(found, minlength=1)
    check_enough(len(numbers), f"the {n:,} {of}")
    if sizes.max() > NEARLY_ALL * n and not told:
        name = listed[int((found == sizes.argmax()).argmax())]
        warnings.warn(
            f"groups: {name!r:.40} has {sizes.max():,} of the {n:,} {of}, and counts for a few of "
            "them only: the guarantee is hardly one of its queries.",
            DependentQueriesWarning,
            stacklevel=callers_line(),
        )
    return found


def check_enough(n_groups: int, of: str) -> None:
    """Refuse fewer than 20 groups.

    Parameters
    ----------
    n_groups : int
        Number of different groups.
    of : str
        Rows that are of these groups, for the error, such as "the 40 queries".

    Raises
    ------
    InputError
        Then.
    """
    if n_groups < LEAST:
        raise InputError(
            f"groups: {of} are of {n_groups} groups, which are what counts: pass at least {LEAST}."
        )


def _is_missing(name: Any) -> bool:
    """Return whether an entry names no group: None, NaN, an empty text, a list."""
    if type(name).__name__ in MISSING or not isinstance(name, Hashable):
        return True
    return bool(name != name) or (isinstance(name, (str, bytes)) and not name.strip())


def split_by_group(
    order: npt.NDArray[np.int_], group: npt.NDArray[np.intp] | None, parts: int
) -> list[npt.NDArray[np.int_]]:
    """Return ``order`` [n] in parts of about the same size, none of which shares a group.

    Groups are dealt out in the order in which they come, each to the part that is smallest.

    Parameters
    ----------
    order : [n]
        Rows in random order.
    group : [n] or None
        Number of the group of each row; None: each is by itself.
    parts : int
        Number of parts.

    Examples
    --------
    >>> [part.tolist() for part in split_by_group(np.arange(4), np.array([0, 0, 1, 2]), 2)]
    [[0, 1], [2, 3]]
    """
    if group is None:
        return np.array_split(order, parts)
    met = group[order]
    names, first, sizes = np.unique(met, return_index=True, return_counts=True)
    filled, part_of = np.zeros(parts), np.empty(int(group.max()) + 1, int)
    for place in np.argsort(first):
        part_of[names[place]] = smallest = int(filled.argmin())
        filled[smallest] += sizes[place]
    return [order[part_of[met] == part] for part in range(parts)]
