"""Items of a report whose label their neighbours disagree with."""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._reporter import Reporter
from laplace_metric.errors import NotFittedError

LOOKED_THROUGH = 50_000
"""Largest index whose labels are reviewed: each item is searched for among all others."""
LABELS_SHOWN = 12
"""Items that a page shows."""


@dataclass(frozen=True)
class LabelRow:
    """An item with another label than is likeliest by its neighbours.

    Parameters
    ----------
    name : str
        Id of the item: the name of its file.
    label, suggested : str
        Label that it has, and the likeliest by its neighbours.
    probability, suggested_probability : float in [0, 1]
        Probabilities, by its neighbours, of these two.
    """

    name: str
    label: str
    suggested: str
    probability: float
    suggested_probability: float


def label_rows(gallery: LoadedIndex, reporter: Reporter) -> list[LabelRow]:
    """Return the items whose likeliest label is another, the least likely label first.

    Nothing is returned for an index without labels, or one that labels did not calibrate.
    """
    index = gallery.index
    if index.labels is None or index.calibration is None:
        return []
    if len(index) > LOOKED_THROUGH:
        reporter.note(
            f"labels of items are reviewed up to {LOOKED_THROUGH:,} items, and the index has "
            f"{len(index):,}: index.suspicious_labels() in Python does it"
        )
        return []
    try:
        review = index.suspicious_labels(len(index))
    except NotFittedError:  # matches calibrated it
        return []
    return [
        LabelRow(
            str(review.ids[row]),
            str(review.labels[row]),
            str(review.suggested[row]),
            round(float(review.probability[row]), 6),
            round(float(review.suggested_probability[row]), 6),
        )
        for row in (review.suggested != review.labels).nonzero()[0]
    ]
