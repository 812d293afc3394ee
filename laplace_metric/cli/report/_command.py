"""``laplace-metric report``: measure, choose what to show, write the page."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from laplace_metric._utils.files import write_atomically
from laplace_metric.cli._evaluate import measured, require_queries
from laplace_metric.cli._gallery import load_gallery
from laplace_metric.cli._output import reporter_of
from laplace_metric.cli.pages import templates
from laplace_metric.cli.parsing import run_text
from laplace_metric.cli.report._charts import charts
from laplace_metric.cli.report._gather import shown_groups
from laplace_metric.cli.report._groups import SHOWN, grouped
from laplace_metric.cli.report._numbers import number_rows
from laplace_metric.cli.report._provenance import provenance
from laplace_metric.cli.report._verdict import counts, headline, lacks
from laplace_metric.cli.report._words import percent
from laplace_metric.search import IndexReport


def report(options: Namespace) -> None:
    """Measure and write the page."""
    reporter = reporter_of(options, options.output)
    require_queries(options)
    gallery = load_gallery(options.index, options, reporter)
    measures, queries = measured(gallery, options, reporter)
    verdict = headline(measures)
    groups = grouped(measures, None if verdict.promise is None else verdict.promise.threshold)
    page = (
        templates()
        .get_template("trust.html.j2")
        .render(
            verdict=verdict,
            groups=groups,
            queries=measures.queries,
            shown=shown_groups(gallery, queries, groups, measures, options, reporter),
            promises=_promises(measures),
            charts=charts(measures),
            numbers=number_rows(measures),
            facts=provenance(gallery, queries, options),
            run=run_text(options),
            calibrated=bool(measures.promises),
            most=SHOWN,
        )
    )
    write_atomically(options.output, page)
    reporter.say(verdict.title)
    reporter.say(f"wrote {options.output}")
    reporter.numbers({**measures.to_json(), "output": str(options.output)})


def _promises(measures: IndexReport) -> list[dict[str, Any]]:
    """The rows of the table of thresholds; what cannot be promised for one reason is one row."""
    rows: list[dict[str, Any]] = []
    for promise in (measures.largest_promise, *measures.promises):
        if promise is None:
            continue
        answered, right = counts(promise, measures.queries)
        goal, why = percent(promise.promised), lacks(promise)
        if why and rows and rows[-1]["lacks"] == why:
            rows[-1]["goal"] += f", {goal}"
            continue
        rows.append({"goal": goal, "promise": promise, "answered": answered,
                     "right": right, "lacks": why})  # fmt: skip
    return rows
