"""Blocks of a chosen number of rows, in the place of those that fit a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def of_rows(step: int) -> Callable[..., Iterator[slice]]:
    """Return what stands in for ``blocks``: slices of ``step`` rows, whatever a row takes."""

    def blocks(n_rows: int, *_: int, **__: int) -> Iterator[slice]:
        for start in range(0, n_rows, step):
            yield slice(start, min(start + step, n_rows))

    return blocks
