"""Totals of a pass, float64 sums over points and pairs, and the terms that are added to them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

Terms = list["Tensor | None"]
"""One summand for each total; None if there is nothing to add."""


def add_terms(totals: Iterable[Tensor], terms: Terms, scale: float = 1.0) -> None:
    """Add ``scale * terms`` to the totals, in place."""
    for total, term in zip(totals, terms, strict=True):
        if term is not None:
            total.add_(term, alpha=scale)
