"""Labels that no item has, but for blanks, case or the form of a character."""

from __future__ import annotations

import unicodedata
import warnings

import numpy as np

from laplace_metric.errors import LaplaceMetricWarning, callers_line
from laplace_metric.inputs._columns import Column

LISTED = 3
"""Labels that a message names."""


def plain_name(label: str) -> str:
    """Return a label without blanks, case and forms of characters.

    Examples
    --------
    >>> plain_name(" T-Shirt\u00a0"), plain_name("\uff33tra\u00dfe")
    ('t-shirt', 'strasse')
    """
    return "".join(unicodedata.normalize("NFKC", label).split()).casefold()


def warn_of_near_names(labels: Column, known: Column | None, therefore: str) -> None:
    """Warn of labels that are not known, but would be if they were written as a known one.

    Parameters
    ----------
    labels : Column
        Labels of queries, or of new items.
    known : Column or None
        Labels of the items, each once; None: there are none.
    therefore : str
        End of the message: what becomes of them.

    Warns
    -----
    LaplaceMetricWarning
        With some of them, and the labels that were probably meant.
    """
    if known is None or not (labels.is_text and known.is_text):
        return
    names, count = np.unique(labels.values, return_counts=True)
    new = known.codes_of(names) < 0
    if not new.any():
        return
    meant = {plain_name(name): name for name in known.values.tolist()}
    near = [
        (name, meant[plain], number)
        for name, number in zip(names[new].tolist(), count[new].tolist(), strict=True)
        if (plain := plain_name(name)) in meant
    ]
    if not near:
        return
    listed = ", ".join(f"{name!r} where items have {own!r}" for name, own, _ in near[:LISTED])
    more = ", ..." if len(near) > LISTED else ""
    warnings.warn(
        f"labels: {sum(number for *_, number in near):,} of {len(labels):,} are {listed}{more}: "
        f"another blank, case or form of a character makes another label. {therefore}",
        LaplaceMetricWarning,
        stacklevel=callers_line(),
    )
