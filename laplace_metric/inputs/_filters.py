"""What names some of the items of an index: a mask, or their ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.inputs._arrays import plain
from laplace_metric.inputs._columns import Column


def read_filter(among: Any, n: int) -> Bool[np.ndarray, " N"] | Column:
    """Return a mask [N] of n items, or the ids that were passed, each once.

    Parameters
    ----------
    among : [N] booleans, or ids
        True for each item that may be found, in the order of the items; or their ids.
    n : int
        Number N of items.

    Raises
    ------
    InputError
        For a mask of another length, ids that stand twice, and numbers that are not whole.

    Examples
    --------
    >>> read_filter([True, False], 2), read_filter(["b", "a"], 2).values
    (array([ True, False]), array(['b', 'a'], dtype=object))
    """
    given = plain(among)
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        if given.is_floating_point():
            _refuse_floats(given.dtype)
        given = given.numpy()
    if _flags(given):
        given = np.array(given, bool)
    kind = getattr(given, "dtype", None)
    if kind is not None and kind.kind == "f" and len(given):
        _refuse_floats(kind)
    if kind is not None and kind.kind == "b":
        if given.shape != (n,):
            raise InputError(
                f"among is a mask of shape {list(given.shape)} for {n:,} items: pass one entry for "
                "each, in the order of index.ids."
            )
        mask: Bool[np.ndarray, " N"] = given
        return mask
    if hasattr(given, "__len__") and not isinstance(given, (str, bytes)) and not len(given):
        return np.zeros(n, bool)
    named = Column.of("among", given)
    if twice := named.duplicates()[:3]:
        raise InputError(
            f"among holds ids more than once, {twice} among them: pass each once. A mask is of "
            "booleans: mask.astype(bool)."
        )
    return named


def _flags(given: Any) -> bool:
    """Return whether a list, or an array of objects, holds booleans alone."""
    kind = getattr(getattr(given, "dtype", None), "kind", "")
    listed = isinstance(given, (list, tuple)) or kind == "O"
    return listed and len(given) > 0 and all(isinstance(one, (bool, np.bool_)) for one in given)


def _refuse_floats(kind: Any) -> None:
    raise InputError(
        f"among is {kind}: pass booleans, one for each item in the order of index.ids, or ids."
    )
