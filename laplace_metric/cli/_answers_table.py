"""Answers as columns: in a file, in the terminal and as JSON."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from laplace_metric._utils.display import as_percent
from laplace_metric._utils.names import one_line
from laplace_metric.calibration import Answers, Rule
from laplace_metric.calibration._answers import UNCERTAIN, UNFAMILIAR
from laplace_metric.cli._gallery import CALIBRATE
from laplace_metric.cli._reporter import Reporter
from laplace_metric.cli._table_files import Columns, rows_of, write_table
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.search import Index, SearchResult
from laplace_metric.search._evaluate import guaranteed_rule

SHOWN = 10
"""Queries in the terminal."""
ANSWERED = "answered"
"""Said of a query where there is no reason to abstain."""


def tell_answers(
    columns: Columns, n_queries: int, k: int, options: Namespace, reporter: Reporter
) -> None:
    """Write the answers, ``k`` of each query, to the --output, the terminal and the --json."""
    if options.output is not None:
        write_table(options.output, columns)
    reporter.show(answers_table(columns, k))
    if n_queries > SHOWN:
        reporter.say(f"the first {SHOWN} of {n_queries:,} queries; --output FILE has them all")
    if "reason" in columns:
        first = [row["reason"] or ANSWERED for row in rows_of(columns) if row["rank"] == 1]
        told = [f"{first.count(word):,} {word}" for word in (ANSWERED, UNCERTAIN, UNFAMILIAR)]
        reporter.say(f"of {n_queries:,} queries: {', '.join(told)}")
    for path in (options.output, options.picture):
        if path is not None:
            reporter.say(f"wrote {path}")
    reporter.numbers({"queries": n_queries, "k": k, "results": rows_of(columns)})


def answers_table(columns: Columns, k: int) -> Table:
    """Return the first queries, a row a neighbour, with the columns that are known."""
    table, shown = Table(box=SIMPLE_HEAD), ["query", "rank", "id"]
    of = {"text": "text", "item label": "item_label"}
    shown += [name for name, column in of.items() if column in columns]
    of = {"match": "match_probability", "label": "label", "": "match_probability"}
    shown += ["distance", *(name for name, column in of.items() if column in columns)]
    for name in shown:
        right = name in ("rank", "distance", "match")
        cut: Any = "fold" if name in ("query", "id") else "ellipsis"
        justify: Any = "right" if right else "left"
        table.add_column(name, justify=justify, overflow=cut, no_wrap=not name)
    for row in rows_of(columns)[: SHOWN * k]:
        cells = {**row, "distance": f"{row['distance']:.3f} ± {row['distance_sd']:.3f}"}
        cells["match"] = as_percent(row.get("match_probability", 0))
        cells["item label"] = row.get("item_label")
        if "label" in row:
            cells["label"] = f"{row['label']}, {as_percent(row['label_probability'])}"
        cells[""] = UNFAMILIAR if row.get("unknown") else ""
        if "reason" in row:
            cells[""] = row["reason"] or ANSWERED
        if row["rank"] > 1:
            cells |= {"query": "", "label": "", "": ""}
        # without control characters and markup
        table.add_row(*(escape(one_line(str(cells[name]))) for name in shown))
    return table


def guaranteed_of(index: Index, options: Namespace, reporter: Reporter) -> Rule | None:
    """Return the rule of --precision, and print it; None if it is not given.

    Raises
    ------
    InputError
        For an index without a calibration, and for more than it can guarantee.
    """
    if options.precision is None:
        return None
    if index.calibration is None:
        raise InputError(f"--precision: the index is not calibrated. {CALIBRATE}.")
    of = index.calibration.decides_about
    rule, words = guaranteed_rule(index.calibration, options.precision, of)
    if rule is None:
        try:
            most = index.calibration.largest_guarantee(of=of).target
            remedy = f"The most is --precision {most or 0:g}."
        except (InputError, NotFittedError) as error:
            remedy = str(error)
        raise InputError(f"--precision {options.precision:g} {words} {remedy}")
    reporter.say(words)
    if bool(index.calibration.known.all()):
        reporter.note(
            "no query without a match has calibrated this index: the guarantee is for "
            "queries that have one. Where others come, index with --open-set-fraction"
        )
    return rule


def columns_of(
    result: SearchResult, names: Sequence[str], answers: Answers | None = None
) -> dict[str, list[Any]]:
    """Return all numbers of a result as columns, with names of queries and the answers of a rule.

    ``answered`` and ``reason`` are those of ``Answers``: about the label, or the nearest item where
    no labels calibrated the index.
    """
    columns = {name: values.tolist() for name, values in result.columns().items()}
    if answers is not None:
        k = result.ids.shape[1]
        columns["answered"] = np.repeat(answers.answered, k).tolist()
        columns["reason"] = np.repeat(answers.reason, k).tolist()
    return {**columns, "query": [names[row] for row in columns["query"]]}
