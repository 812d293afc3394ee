"""Queries that were in the fit: the posterior is surer of them than of anything new."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Bool

from laplace_metric.errors import FittedQueriesWarning
from laplace_metric.models.features import Fingerprints

TOLERATED = 0.01
"""Share of queries that may have been in the fit: most collections hold a few copies."""
AT_ONCE = 256
"""Queries that are looked up together."""
NEAR = np.array([(i << 56) + (j << 48) for i in (255, 0, 1) for j in (255, 0, 1)], np.uint64)
"""Added to a fingerprint: its two highest bytes, each also one more and one less modulo 256."""
LOW = np.uint64(2**48 - 1)


def in_fit(known: Fingerprints, rows: Fingerprints) -> Bool[np.ndarray, " Q"]:
    """Whether each of ``rows`` is one of the sorted ``known``, up to rounding.

    That is, whether all eight bytes differ by at most 1, modulo 256 (``row_fingerprints``).

    Examples
    --------
    >>> known = np.array([5, 0x0102030405060708], np.uint64)
    >>> in_fit(known, np.array([0x0203040504050607, 0x0002030405060706, 0xFF00000000000004], "u8"))
    array([ True, False,  True])
    """
    found = np.zeros(len(rows), bool)
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        first = (_moved(part) & ~LOW).reshape(-1)  # [9 q]: the smallest of nine ranges a query
        begin, end = np.searchsorted(known, first), np.searchsorted(known, first | LOW, "right")
        sizes = end - begin
        owner = np.repeat(np.arange(len(part)).repeat(len(NEAR)), sizes)
        place = np.arange(sizes.sum()) + np.repeat(begin - sizes.cumsum() + sizes, sizes)
        near = ((_bytes(known[place]) - _bytes(part[owner]) + np.uint8(1)) <= 2).all(1)
        found[start + owner[near]] = True
    return found


def _moved(rows: Fingerprints) -> Fingerprints:
    """[Q, 9]: the two highest bytes moved by ``NEAR``, without a carry from one to the other."""
    high = rows[:, None] & np.uint64(0xFF << 56)
    middle = rows[:, None] & np.uint64(0xFF << 48)
    to_high, to_middle = NEAR & np.uint64(0xFF << 56), NEAR & np.uint64(0xFF << 48)
    return (high + to_high) | ((middle + to_middle) & np.uint64(0xFF << 48))


def _bytes(rows: Fingerprints) -> np.ndarray:
    return rows.astype("<u8").view(np.uint8).reshape(-1, 8)


def warn_if_fitted(known: Fingerprints | None, rows: Fingerprints) -> None:
    """Warn of queries that were in the fit, if that is known and they are more than a few.

    Warns
    -----
    FittedQueriesWarning
        With their share, and what to do.
    """
    if known is None or not len(rows):
        return
    count = int(in_fit(known, rows).sum())
    if count <= TOLERATED * len(rows):
        return
    warnings.warn(
        f"{count / len(rows):.0%} of the queries ({count:,} of {len(rows):,}) were in the fit of "
        "the posterior, which is surer of them than of anything new: probabilities, thresholds "
        "and what is measured here will not hold on new queries. Keep them out of the fit.",
        FittedQueriesWarning,
        stacklevel=4,
    )
