"""``laplace-metric search``: the neighbours of each query, and how certain each of them is."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from laplace_metric._utils.display import as_percent
from laplace_metric._utils.names import one_line
from laplace_metric.calibration._thresholds import Threshold
from laplace_metric.cli._gallery import CALIBRATE, LoadedIndex, load_gallery
from laplace_metric.cli._pictures import Pictures
from laplace_metric.cli._reporter import Reporter, reporter_of
from laplace_metric.cli._sources import (
    ARRAYS,
    IMAGES,
    TEXTS,
    given_texts,
    require_data,
    root_of,
)
from laplace_metric.cli._table_files import TABLE_WRITERS, Columns, rows_of, write_table
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.io import write_atomically
from laplace_metric.search import Index, SearchResult
from laplace_metric.search._evaluate import guaranteed_threshold

SHOWN = 10
"""Queries in the terminal."""
DECISIONS = ("answer", "abstain", "unknown")
"""What to do with a query; one that is unknown is not answered either."""


def search(options: Namespace) -> None:
    """Search, show, write."""
    reporter = reporter_of_answers(options)
    if bool(options.text) == (options.queries is not None):
        raise InputError("give QUERIES, which is a file or a folder, or --text: one of the two.")
    require_data(options)
    gallery = load_gallery(options.index, options, reporter)
    posterior, threshold = gallery.posterior, guaranteed_of(gallery.index, options, reporter)
    if options.text:
        queries = posterior.checked(given_texts(options.text))
    else:
        queries = posterior.source(options.queries, options, reporter)
    if options.picture is not None:
        items = _shown(gallery, queries.kind)
    loader = queries.batches(options.batch_size)
    with reporter.warnings():
        result = gallery.index.search(loader, options.k, progress=reporter.progress)
    columns = columns_of(result, queries.ids, threshold)
    if texts := gallery.item_texts(reporter):
        columns["text"] = [texts.get(name, "") for name in columns["id"]]
    if options.picture is not None:
        asked: Sequence[Any] = Pictures(root_of(queries.path), queries.ids)
        if queries.kind != IMAGES:
            asked = list(queries.read(range(len(queries))))
        write_picture(options.picture, result, asked, items)
    tell_answers(columns, len(queries), options.k, options, reporter)


def _shown(gallery: LoadedIndex, kind: str) -> Sequence[Any]:
    """Items to show: texts, or images that are read when they are shown."""
    if kind == ARRAYS:
        raise InputError("--picture needs images or texts: the index holds arrays.")
    if kind == TEXTS:
        texts = gallery.items().texts()
        return [texts[name] for name in gallery.index.ids.tolist()]
    pictures = gallery.item_pictures()
    if not pictures.folder.exists():
        raise InputError(f"{pictures.folder}, which the index was built from, does not exist.")
    return pictures


def reporter_of_answers(options: Namespace) -> Reporter:
    """The reporter, whose --output and --picture are checked before the work.

    Raises
    ------
    InputError
        For other endings than can be written.
    """
    output, figure = options.output, options.picture
    if output is not None and output.suffix not in TABLE_WRITERS:
        raise InputError(f"--output {output}: end it in {', '.join(TABLE_WRITERS)}.")
    if figure is not None and figure.suffix != ".png":
        raise InputError(f"--picture {figure}: end it in .png.")
    return reporter_of(options, output, figure)


def tell_answers(
    columns: Columns, n_queries: int, k: int, options: Namespace, reporter: Reporter
) -> None:
    """Write the answers, ``k`` of each query, to the --output, the terminal and the --json."""
    if options.output is not None:
        write_table(options.output, columns)
    reporter.show(answers_table(columns, k))
    if n_queries > SHOWN:
        reporter.say(f"the first {SHOWN} of {n_queries:,} queries; --output FILE has them all")
    if "decision" in columns:
        first = [row["decision"] for row in rows_of(columns) if row["rank"] == 1]
        told = [f"{first.count(word):,} {word}" for word in DECISIONS]
        reporter.say(f"of {n_queries:,} queries: {', '.join(told)}")
    for path in (options.output, options.picture):
        if path is not None:
            reporter.say(f"wrote {path}")
    reporter.numbers({"queries": n_queries, "k": k, "results": rows_of(columns)})


def answers_table(columns: Columns, k: int) -> Table:
    """The first queries, a row a neighbour; without a column for what there is not."""
    table, shown = Table(box=SIMPLE_HEAD), ["query", "rank", "id"]
    shown += [name for name in ("text", "label") if name in columns]
    of = {"match": "match_probability", "predicted": "predicted_label", "": "match_probability"}
    shown += ["distance", *(name for name, column in of.items() if column in columns)]
    for name in shown:
        right = name in ("rank", "distance", "match")
        cut: Any = "fold" if name in ("query", "id") else "ellipsis"
        table.add_column(name, justify="right" if right else "left", overflow=cut)
    for row in rows_of(columns)[: SHOWN * k]:
        cells = {**row, "distance": f"{row['distance']:.3f} ± {row['distance_sd']:.3f}"}
        cells["match"] = as_percent(row.get("match_probability", 0))
        if "predicted_label" in row:
            p = as_percent(row["predicted_probability"])
            cells["predicted"] = f"{row['predicted_label']}, {p}"
        cells[""] = row.get("decision", "unknown" if row.get("unknown") else "")
        if row["rank"] > 1:
            cells |= {"query": "", "predicted": "", "": ""}
        # without control characters and markup
        table.add_row(*(escape(one_line(str(cells[name]))) for name in shown))
    return table


def guaranteed_of(index: Index, options: Namespace, reporter: Reporter) -> Threshold | None:
    """The threshold of --precision, which is told; None where it is not given.

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
    threshold, words = guaranteed_threshold(index.calibration, options.precision, of)
    if threshold is None:
        try:
            most = index.calibration.largest_guarantee(of=of).target
            remedy = f"The most is --precision {most:g}."
        except (InputError, NotFittedError) as error:
            remedy = str(error)
        raise InputError(f"--precision {options.precision:g} {words} {remedy}")
    reporter.say(words)
    if bool(index.calibration.known.all()):
        reporter.note(
            "no query without a match has calibrated this index: the guarantee is for "
            "queries that have one. Where others come, index with --open-set-fraction"
        )
    return threshold


def columns_of(
    result: SearchResult, names: Sequence[str], threshold: Threshold | None = None
) -> dict[str, list[Any]]:
    """Every number of a result as columns, with the names of the queries; decisions, if asked."""
    columns = {name: values.tolist() for name, values in result.columns().items()}
    if threshold is not None:
        columns["decision"] = [word for word in decisions(result, threshold) for _ in result.ids[0]]
    return {**columns, "query": [names[row] for row in columns["query"]]}


def decisions(result: SearchResult, threshold: Threshold) -> list[str]:
    """Return for each query: answer, abstain, or unknown (not answered either).

    About its predicted label, or its nearest item where no labels calibrated the index.
    """
    assert result.p_value is not None
    assert threshold.alpha is not None
    unknown = (result.p_value <= threshold.alpha).tolist()
    pairs = zip(result.accepted(threshold).tolist(), unknown, strict=True)
    return ["answer" if yes else "unknown" if strange else "abstain" for yes, strange in pairs]


def write_picture(
    path: Path, result: SearchResult, queries: Sequence[Any], items: Sequence[Any]
) -> None:
    """Write a PNG of the first queries with what they found."""
    file = io.BytesIO()
    result.figure(queries, items).savefig(file, format="png", dpi=110, facecolor="white")
    write_atomically(path, file.getvalue())
