"""Rows of a report for each level of coarser answers: how many are given, and how many right."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from laplace_metric.calibration.labels._levels import Levels
from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._guarantee_test import GuaranteeTest
from laplace_metric.cli._share import Share
from laplace_metric.cli._source import Source
from laplace_metric.errors import InputError
from laplace_metric.search._report import GuaranteedPrecision


@dataclass(frozen=True)
class LevelRow:
    """Answers at one level.

    Parameters
    ----------
    name : str
        Name of the level.
    answered : Share
        Queries that are answered at this level, of all.
    right : Share
        Right answers, of those at this level.
    test : GuaranteeTest or None
        Test of the guarantee by these answers. None, the default, without answers.
    refused : str
        Reason why the level gives no answers. Default: "", it does.
    """

    name: str
    answered: Share
    right: Share
    test: GuaranteeTest | None = None
    refused: str = ""


def level_rows(
    gallery: LoadedIndex,
    queries: Source,
    levels: Levels | None,
    made: GuaranteedPrecision | None,
    batch_size: int,
) -> list[LevelRow]:
    """Return a row for each level, the labels first.

    Nothing is returned without levels, labels of the queries or a guarantee. A precision that can
    be guaranteed of no level is one row with the reason.

    Parameters
    ----------
    gallery : LoadedIndex
        Index with its posterior and the items that it was built from.
    queries : Source
        Labelled queries that did not calibrate it.
    levels : Levels or None
        Groups of the labels; None: answers are labels alone.
    made : GuaranteedPrecision or None
        Guarantee of the report, whose precision each level keeps; None: there is none.
    batch_size : int
        Number of queries in one call of the model.
    """
    truth = gallery.classes_of(queries)
    if levels is None or made is None or truth is None:
        return []
    try:
        rule = gallery.index.guarantee_by_level(made.guaranteed, levels)
    except InputError as error:
        return [LevelRow("all levels", Share(0, 0), Share(0, 0), refused=str(error))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluation said it already
        found = gallery.index.evaluate_answers(queries.batches(batch_size), truth, rule)
    rows = []
    for level, (n, right, _) in found.levels.items():
        name, of = "label" if level == 0 else f"level {level}", Share(right, n)
        test = GuaranteeTest(of, made.guaranteed) if n else None
        why = rule.refused.get(level, "")
        rows.append(LevelRow(name, Share(n, len(found)), of, test, why))
    return rows
