"""Rows of a report for each class: what is answered with its label, and what it really was."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._share import Share
from laplace_metric.cli._source import Source
from laplace_metric.search import IndexReport
from laplace_metric.search._report import GuaranteedPrecision

NAMED = 3
"""True classes of wrong answers that are named."""


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
    return rows_of_answers(found.label, truth, made.accepted.cpu().numpy())


def rows_of_answers(label: Any, truth: Any, answered: Any) -> list[ClassRow]:
    """Return the rows of answers [Q] with these labels.

    Examples
    --------
    >>> for row in rows_of_answers(["a", "a", "b", "c"], ["a", "b", "b", "a"], [1, 1, 1, 0]):
    ...     print(row.name, row.right.k, row.right.n, row.answered.k, row.answered.n, row.really)
    a 1 2 1 2 b (1)
    b 1 1 2 2
    """
    said, true = (np.array([*map(str, column)]) for column in (label, truth))
    given = np.asarray(answered, bool)
    rows = []
    for name in np.unique(np.concatenate([true, said[given]])):
        own, told = true == name, given & (said == name)
        wrong = Counter(true[told & ~own].tolist()).most_common(NAMED)
        right = Share(int((told & own).sum()), int(told.sum()))
        covered = Share(int((own & given).sum()), int(own.sum()))
        really = ", ".join(f"{other} ({n})" for other, n in wrong)
        rows.append(ClassRow(str(name), right, covered, really))
    return sorted(rows, key=lambda row: (row.right.n == 0, row.right.k / max(1, row.right.n)))
