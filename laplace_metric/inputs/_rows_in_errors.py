"""Numbers of rows in errors: those of the whole call, where a batch is a part of it.

Whoever cuts inputs into batches, or reads a loader, says how many rows came before a batch:

    with rows_before(256):
        ...                     # row 34 of the batch is called row 290
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from jaxtyping import Bool
from torch import Tensor

_BEFORE: ContextVar[int] = ContextVar("rows before this batch", default=0)


@contextmanager
def rows_before(n: int) -> Iterator[None]:
    """Count rows from n on, in the errors that are raised inside.

    Parameters
    ----------
    n : int
        Rows of the batches before this one.

    Examples
    --------
    >>> import torch
    >>> with rows_before(256):
    ...     bad_rows(torch.tensor([False, True]))
    'row 257 (1 of the 2 rows from 256 on)'
    """
    token = _BEFORE.set(n)
    try:
        yield
    finally:
        _BEFORE.reset(token)


def bad_rows(bad: Bool[Tensor, " B"]) -> str:
    """Name the rows that are marked, and say of how many.

    Parameters
    ----------
    bad : Tensor [B] of bool
        True for the rows of this batch that are named.

    Examples
    --------
    >>> import torch
    >>> bad_rows(torch.tensor([False, True, True]))
    'rows 1, 2 (2 of 3)'
    """
    return named_rows(bad.nonzero().flatten().tolist(), len(bad))


def named_rows(rows: Sequence[int], n: int) -> str:
    """Name some rows of a batch, counted as in the whole call, and say of how many they are.

    Parameters
    ----------
    rows : list of int
        Places in this batch, from 0 on.
    n : int
        Rows of this batch.

    Examples
    --------
    >>> named_rows([3], 40)
    'row 3 (1 of 40)'
    """
    first = _BEFORE.get()
    of = f"the {n} rows from {first} on" if first else f"{n}"
    return f"{row_list([first + row for row in rows])} ({len(rows)} of {of})"


def row_of_call(row: int) -> int:
    """Return the number of a row of this batch in the whole call.

    Examples
    --------
    >>> with rows_before(256):
    ...     row_of_call(34)
    290
    """
    return _BEFORE.get() + row


def rows_of_this_batch(n: int) -> str:
    """Return the numbers of the n rows of this batch, for an error that names none of them.

    Examples
    --------
    >>> rows_of_this_batch(44)
    'rows 0 to 43'
    """
    first = _BEFORE.get()
    return f"rows {first} to {first + n - 1}"


def row_list(rows: Sequence[int], most: int = 5) -> str:
    """Return the first rows, for an error.

    Examples
    --------
    >>> row_list([3]), row_list(range(9))
    ('row 3', 'rows 0, 1, 2, 3, 4, ...')
    """
    named = ", ".join(str(row) for row in rows[:most]) + (", ..." if len(rows) > most else "")
    return f"row{'s' if len(rows) > 1 else ''} {named}"
