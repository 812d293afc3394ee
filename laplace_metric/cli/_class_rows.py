"""Rows of a report for each class: what is answered with its label, and what it really was."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from laplace_metric.calibration.rules._answers import UNCERTAIN
from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._share import Share
from laplace_metric.cli._source import Source
from laplace_metric.search import AnswerReport, IndexReport
from laplace_metric.search._report import GuaranteedPrecision


@dataclass(frozen=True)
class ClassRow:
    """Answers with one label, and queries of its class.

    Parameters
    ----------
    name : str
        Label of the class.
    right : Share
        Right answers, of those with this label.
    answered : Share
        Answered queries, of those of this class.
    really : str
        True classes of its wrong answers, with their numbers.
    """

    name: str
    right: Share
    answered: Share
    really: str


def class_rows(
    gallery: LoadedIndex,
    queries: Source,
    measures: IndexReport,
    made: GuaranteedPrecision | None,
    batch_size: int,
) -> list[ClassRow]:
    """Return a row for each class, that with the least precise answers first.

    Classes whose label is not answered stand last. Nothing is returned without labels or a
    guarantee.
    """
    truth = gallery.classes_of(queries)
    if made is None or made.accepted is None or truth is None or measures.decides_about != "label":
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluation said it already
        found = gallery.index.search(queries.batches(batch_size), 1)
    assert found.label is not None
    reason = np.where(made.accepted.cpu().numpy(), "", UNCERTAIN)
    said, true = (np.array([*map(str, column)], object) for column in (found.label, truth))
    report = AnswerReport(said, true, np.zeros(len(said)), reason)
    return [
        ClassRow(
            one.name,
            Share(one.right, one.given),
            Share(one.answered, one.queries),
            ", ".join(f"{other} ({n})" for other, n in one.really.items()),
        )
        for one in report.classes
    ]
