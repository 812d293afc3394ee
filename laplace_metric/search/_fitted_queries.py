"""Warn of queries that were in the fit: the posterior is more certain of them than of new ones."""

from __future__ import annotations

import warnings

from laplace_metric.errors import FittedQueriesWarning, callers_line
from laplace_metric.models._fingerprints import Fingerprints, in_fit

TOLERATED = 0.01
"""Share of queries that may have been in the fit: most collections hold a few copies."""


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
        stacklevel=callers_line(),
    )
