"""Blocks of rows: they cover all rows in order, within their budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laplace_metric._utils.blocks import BLOCK_BYTES, block_rows, blocks


@given(st.integers(0, 50), st.integers(0, 40), st.integers(0, 100), st.integers(1, 9))
def test_they_cover_the_rows_within_their_budget(n_rows, row_bytes, budget, least):
    parts = list(blocks(n_rows, row_bytes, budget, least))
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(n_rows))
    sizes = [part.stop - part.start for part in parts]
    assert all(size <= least or size * row_bytes <= budget for size in sizes)
    if len(sizes) > 1:  # one row more would not fit
        step = block_rows(row_bytes, budget, least)
        assert sizes[:-1] == [step] * (len(sizes) - 1)
        assert (step + 1) * max(1, row_bytes) > budget


def test_the_default_budget():
    assert block_rows(2**20) == BLOCK_BYTES // 2**20
    assert block_rows(BLOCK_BYTES + 1) == 1
