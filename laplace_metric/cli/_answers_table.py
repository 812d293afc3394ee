"""Answers as columns: in a file, in the terminal and as JSON."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from laplace_metric._utils.display import as_percent
from laplace_metric._utils.names import one_line
from laplace_metric.calibration import Answers, Rule
from laplace_metric.calibration.rules._answers import UNCERTAIN, UNFAMILIAR
from laplace_metric.cli._coarser_table import levels_of
from laplace_metric.cli._gallery import CALIBRATE
from laplace_metric.cli._reporter import Reporter
from laplace_metric.cli._shown_table import ShownColumn, ShownTable
from laplace_metric.cli._table_files import Columns, rows_of, write_table
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.search import Index, SearchResult
from laplace_metric.search._evaluate import guaranteed_rule

SHOWN = 10
"""Queries in the terminal."""
NAME, LABEL = 12, 8
"""Characters that names and labels keep in a narrow terminal."""
SPARE = (
    ("sd",),
    ("item label",),
    ("text",),
    ("distance",),
    ("rank", "id", "match"),
    ("probability",),
)
"""Columns that a narrow terminal does without, those of a tuple together, the first one first."""
ANSWERED = "answered"
"""Said of a query where there is no reason to abstain."""


def tell_answers(
    columns: Columns, n_queries: int, k: int, options: Namespace, reporter: Reporter
) -> None:
    """Write the answers, ``k`` of each query, to the --output, the terminal and the --json."""
    if options.output is not None:
        write_table(options.output, columns)
    table = answers_table(columns, k)
    reporter.show(table)
    if options.output is None and not table.is_whole(reporter.width):
        reporter.note("names or columns do not fit here and are shortened; --output FILE has all")
    if n_queries > SHOWN:
        reporter.say(f"the first {SHOWN} of {n_queries:,} queries; --output FILE has them all")
    if "reason" in columns:
        first = [row["reason"] or ANSWERED for row in rows_of(columns) if row["rank"] == 1]
        told = [f"{first.count(word):,} {word}" for word in (ANSWERED, UNCERTAIN, UNFAMILIAR)]
        if "level" in columns:
            told[0] += _by_level([row["level"] for row in rows_of(columns) if row["rank"] == 1])
        reporter.say(f"of {n_queries:,} queries: {', '.join(told)}")
    for path in (options.output, options.picture):
        if path is not None:
            reporter.say(f"wrote {path}")
    reporter.numbers({"queries": n_queries, "k": k, "results": rows_of(columns)})


def _by_level(levels: Sequence[int | None]) -> str:
    """Return the number of answers at each level, in words; nothing without an answer."""
    given = [level for level in levels if level is not None]
    told = [f"{given.count(level):,} at level {level}" for level in sorted({*given})]
    return f" ({', '.join(told)})" if told else ""


def answers_table(columns: Columns, k: int) -> ShownTable:
    """Return the first queries, a row a neighbour, with the columns that are known."""
    rows = rows_of(columns)[: SHOWN * k]
    first = [row["rank"] == 1 for row in rows]

    def cells(text: Callable[[dict[str, Any]], Any], once: bool = False) -> list[str]:
        """Write one cell a row; of a query, ``once``."""
        told = zip(rows, first, strict=True)
        return [one_line(str(text(row))) if top or not once else "" for row, top in told]

    shown = {
        "query": ShownColumn("query", cells(lambda row: row["query"], True), NAME, middle=True),
        "rank": ShownColumn("rank", cells(lambda row: row["rank"]), right=True),
        "id": ShownColumn("id", cells(lambda row: row["id"]), NAME, middle=True),
    }
    if "text" in columns:
        shown["text"] = ShownColumn("text", cells(lambda row: row["text"]), NAME)
    if "item_label" in columns:
        shown["item label"] = ShownColumn("item label", cells(lambda row: row["item_label"]), NAME)
    distance = cells(lambda row: f"{row['distance']:.3f}")
    shown["distance"] = ShownColumn("distance", distance, right=True)
    shown["sd"] = ShownColumn("±", cells(lambda row: f"{row['distance_sd']:.3f}"), right=True)
    if "match_probability" in columns:
        match = cells(lambda row: as_percent(row["match_probability"]))
        shown["match"] = ShownColumn("match", match, right=True)
    if "label" in columns:
        shown["label"] = ShownColumn("label", cells(lambda row: row["label"], True), LABEL)
        sure = cells(lambda row: as_percent(row["label_probability"]), True)
        shown["probability"] = ShownColumn("prob.", sure, right=True)
    if "level" in columns:
        level = cells(lambda row: "" if row["level"] is None else row["level"], True)
        shown["level"] = ShownColumn("level", level, right=True)
    if "reason" in columns:
        shown["reason"] = ShownColumn("", cells(lambda row: row["reason"] or ANSWERED, True))
    elif "match_probability" in columns:
        called = cells(lambda row: UNFAMILIAR if row.get("unknown") else "", True)
        shown["reason"] = ShownColumn("", called)
    return ShownTable(shown, SPARE)


def check_asked(options: Namespace) -> None:
    """Check what is asked of the answers, before an index is loaded.

    Raises
    ------
    InputError
        For --by-class or --coarser without --precision, and for both.
    """
    by_class, coarser = getattr(options, "by_class", False), getattr(options, "coarser", None)
    if by_class and coarser is not None:
        raise InputError("--by-class and --coarser: give one of the two.")
    if options.precision is None and by_class:
        raise InputError("--by-class: give --precision P, which is kept for each label.")
    if options.precision is None and coarser is not None:
        raise InputError("--coarser: give --precision P, which is kept at each level.")


def guaranteed_of(index: Index, options: Namespace, reporter: Reporter) -> Rule | None:
    """Return the rule of --precision, and print it; None if it is not given.

    Raises
    ------
    InputError
        For an index without a calibration, and for more than it can guarantee.
    """
    if options.precision is None:
        return None
    by_class, coarser = getattr(options, "by_class", False), getattr(options, "coarser", None)
    if index.calibration is None:
        raise InputError(f"--precision: the index is not calibrated. {CALIBRATE}.")
    of = index.calibration.decides_about
    if by_class:
        try:
            classes = index.calibration.guarantee_by_class(options.precision)
        except NotFittedError as error:
            raise InputError(f"--by-class: {error}") from error
        reporter.say(classes.sentence)
        return classes
    if coarser is not None:
        levels = index.guarantee_by_level(options.precision, levels_of(index, coarser))
        reporter.say(levels.sentence)
        return levels
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

    Queries that are several views have the ids of the result, others the ``names``.

    ``answered`` and ``reason`` are those of ``Answers``: about the label, or the nearest item where
    no labels calibrated the index. With coarser answers, ``level`` is that of the answer, and
    ``label`` and ``label_probability`` are those of the group where one is given.
    """
    columns = {name: values.tolist() for name, values in result.columns().items()}
    if answers is not None:
        k = result.ids.shape[1]
        columns["answered"] = np.repeat(answers.answered, k).tolist()
        columns["reason"] = np.repeat(answers.reason, k).tolist()
        if answers.level is not None:
            given = np.repeat(answers.answered, k)
            for name, values in (
                ("label", answers.label),
                ("label_probability", answers.probability),
            ):
                own = np.array(columns[name], dtype=object)
                columns[name] = np.where(given, np.repeat(values, k), own).tolist()
            columns["level"] = np.repeat(answers.level, k).tolist()
    if result.query_ids is not None:
        return columns
    return {**columns, "query": [names[row] for row in columns["query"]]}
