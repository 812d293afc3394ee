"""Every query of a report as a table, what a person should look at first on top.

In this order: open-set queries that were let in, wrong answers, each from the surest on; items with
another label than is likeliest by their neighbours, the least likely label first; then queries that
were not answered and would have been right, others that were not, and right answers.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._label_rows import LabelRow
from laplace_metric.cli._reporter import Reporter
from laplace_metric.cli._source import Source
from laplace_metric.cli._table_files import TABLE_WRITERS, Columns, write_table
from laplace_metric.errors import InputError
from laplace_metric.search import IndexReport
from laplace_metric.search._evaluate import guaranteed_rule
from laplace_metric.search._report import GuaranteedPrecision

LET_IN, WRONG, LABEL, WOULD_BE_RIGHT, OTHER, RIGHT = range(6)
SAID = (
    "open-set query, answered",
    "wrong",
    "item, label to look at",
    "abstained, would be right",
    "abstained",
    "right",
)
"""What became of a query, or an item to look at, in the order of the table."""


def check_table(path: Path | None) -> None:
    """Refuse a table of another kind.

    Raises
    ------
    InputError
        Then.
    """
    if path is not None and path.suffix not in TABLE_WRITERS:
        raise InputError(f"--table {path}: end it in {', '.join(TABLE_WRITERS)}.")


def write_work_list(
    gallery: LoadedIndex,
    queries: Source,
    measures: IndexReport,
    made: GuaranteedPrecision | None,
    labels: Sequence[LabelRow],
    options: Namespace,
) -> None:
    """Write the table of --table: query, class, answer, probability, reason and outcome.

    Of an item whose label is to be looked at the class is this label, the answer the likeliest one.

    Raises
    ------
    InputError
        For an index whose guarantee nothing can be decided by.
    """
    if options.table is None:
        return
    if made is None or gallery.index.calibration is None:
        raise InputError("--table: nothing is guaranteed, so that no query is answered by a rule.")
    truth = gallery.classes_of(queries)
    parts = [_rows(gallery, queries, truth, measures, made, options)]
    if measures.ood is not None:
        source = gallery.posterior.source(options.open_set, options, Reporter(quiet=True))
        parts.append(_rows(gallery, source, None, measures, made, options, open_set=True))
    rows = [row for part in parts for row in part]
    rows += [
        (LABEL, -one.probability, (one.name, one.label, one.suggested, p, "", SAID[LABEL]))
        for one in labels
        for p in [one.suggested_probability]
    ]
    rows.sort(key=lambda row: (row[0], -row[1] if row[0] != RIGHT else row[1]))
    names = ("query", "class", "answer", "probability", "reason", "outcome")
    columns: Columns = {name: [row[2][place] for row in rows] for place, name in enumerate(names)}
    write_table(options.table, columns)


def _rows(
    gallery: LoadedIndex,
    queries: Source,
    truth: Sequence[str | int] | None,
    measures: IndexReport,
    made: GuaranteedPrecision,
    options: Namespace,
    *,
    open_set: bool = False,
) -> list[tuple[int, float, tuple[object, ...]]]:
    """Return the place in the order, the probability and the cells of each query."""
    calibration = gallery.index.calibration
    assert calibration is not None
    rule, _ = guaranteed_rule(calibration, made.guaranteed, measures.decides_about)
    assert rule is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluation said it already
        result = gallery.index.search(queries.batches(options.batch_size), 1)
        answers = rule(result)
    of_label = measures.decides_about == "label" and result.label is not None
    likeliest = result.label if of_label else result.nearest
    assert likeliest is not None
    rows = list[tuple[int, float, tuple[object, ...]]]()
    for number, name in enumerate(queries.ids):
        true = None if truth is None else truth[number]
        own, p = str(likeliest[number]), round(float(answers.probability[number]), 6)
        reason, right = str(answers.reason[number]), true is not None and own == str(true)
        if not reason:
            kind = LET_IN if open_set else RIGHT if right else WRONG
        else:
            kind = WOULD_BE_RIGHT if right else OTHER
        rows.append((kind, p, (name, true or "", own, p, reason, SAID[kind])))
    return rows
