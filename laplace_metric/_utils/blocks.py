"""Rows in blocks whose arrays fit a budget of memory.

A block should be small enough for its arrays to stay in a cache, and large enough for products at
full rate: on a GPU, for few launches. No result may depend on the size of a block beyond rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

CACHE_BYTES = 2**22
"""Budget of a block that is read several times, so that it should stay in a CPU's cache."""
BLOCK_BYTES = 2**24
"""Budget of a block that is read once or twice: the default."""
LARGE_BYTES = 2**26
"""Budget of a block that must be large: each block costs a call, or what is summed is large."""
LEAST_ROWS = 64
"""Rows of a block that is a factor of a product, however wide it is: fewer are not at full rate."""


def blocks(
    n_rows: int, row_bytes: int, budget: int | None = None, least: int = 1
) -> Iterator[slice]:
    """Yield slices that cover the rows in order, each of ``block_rows`` rows, the last of fewer.

    Parameters
    ----------
    n_rows : int
        Number of rows; no row has no slice.
    row_bytes : int
        Memory of one row in all arrays of a block.
    budget : int or None
        Memory of a block. None, the default: ``BLOCK_BYTES``.
    least : int
        Rows of a block even if they exceed the budget. Default: 1.

    Examples
    --------
    >>> list(blocks(5, row_bytes=8, budget=20))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = block_rows(row_bytes, budget, least)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def block_rows(row_bytes: int, budget: int | None = None, least: int = 1) -> int:
    """Return the number of rows of a block, as ``blocks`` chooses it.

    Examples
    --------
    >>> block_rows(8, budget=20), block_rows(8, budget=20, least=64)
    (2, 64)
    """
    budget = BLOCK_BYTES if budget is None else budget
    return max(least, budget // max(1, row_bytes))
