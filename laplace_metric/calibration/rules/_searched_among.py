"""A search among some items of a gallery, and what it means for a guarantee.

A rule was tested with the whole gallery. Among some of its items a query has other neighbours, and
possibly none of its label: the tested precision is not that of such answers.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from laplace_metric.errors import StaleCalibrationWarning, callers_line


@dataclass(frozen=True)
class SearchedAmong:
    """Restriction of one search to some items.

    Parameters
    ----------
    allowed : int
        Number of items that could be found.
    items : int
        Number of items of the gallery.
    told : list of str
        Empty until a rule has warned of it; searches with one calibration share the list. Default:
        a list of its own.

    Examples
    --------
    >>> print(SearchedAmong(90, 900))
    searched among 90 of 900 items; guarantees were tested with the whole gallery
    """

    allowed: int
    items: int
    told: list[str] = field(default_factory=list, compare=False, repr=False)

    def __str__(self) -> str:
        return (
            f"searched among {self.allowed:,} of {self.items:,} items; guarantees were tested with "
            "the whole gallery"
        )


def warn_among(among: SearchedAmong) -> None:
    """Warn, once a calibration, that a guarantee was not tested among some items."""
    if among.told:
        return
    told = (
        "the guarantee was tested with the whole gallery, and is not known to hold among some of "
        "its items (among=). Guard those items alone for a guarantee of their own."
    )
    among.told.append(told)
    warnings.warn(told, StaleCalibrationWarning, stacklevel=callers_line())
