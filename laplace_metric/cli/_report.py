"""``laplace-metric report``: measure, choose what to show, write the page."""

from __future__ import annotations

import platform
import warnings
from argparse import Namespace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch

from laplace_metric._utils import __version__
from laplace_metric.calibration import Calibration
from laplace_metric.cli._charts import charts
from laplace_metric.cli._class_rows import class_rows
from laplace_metric.cli._coarser_table import levels_of
from laplace_metric.cli._evaluate import measured
from laplace_metric.cli._examples import SHOWN, asked, evenly, grouped
from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._guarantee_test import GuaranteeTest
from laplace_metric.cli._headline import counts, headline
from laplace_metric.cli._label_rows import LABELS_SHOWN, label_rows
from laplace_metric.cli._level_rows import level_rows
from laplace_metric.cli._looks import item_look, look_of
from laplace_metric.cli._open_source import require_data
from laplace_metric.cli._options import command_text
from laplace_metric.cli._reporter import Reporter, reporter_of
from laplace_metric.cli._resampled import resampled
from laplace_metric.cli._share import Share, percent
from laplace_metric.cli._source import Source
from laplace_metric.cli._templates import templates
from laplace_metric.cli._work_list import check_table, write_work_list
from laplace_metric.io import write_atomically
from laplace_metric.plots._svg import inline_svg
from laplace_metric.search import IndexReport
from laplace_metric.search._report import GuaranteedPrecision


def report(options: Namespace) -> None:
    """Measure and write the page."""
    check_table(options.table)
    reporter = reporter_of(options, options.output, options.table)
    require_data(options)
    gallery = load_gallery(options.index, options, reporter)
    groups_of = None if options.coarser is None else levels_of(gallery.index, options.coarser)
    measures, queries = measured(gallery, options, reporter)
    verdict = headline(measures)
    groups = grouped(measures, verdict["made"])
    shown = _shown(gallery, queries, groups, measures, verdict["made"], options)
    classes = class_rows(gallery, queries, measures, verdict["made"], options.batch_size)
    levels = level_rows(gallery, queries, groups_of, verdict["made"], options.batch_size)
    labels = label_rows(gallery, reporter)
    page = (
        templates()
        .get_template("trust.html.j2")
        .render(
            verdict=verdict,
            classes=classes,
            levels=levels,
            labels=labels,
            labels_shown=LABELS_SHOWN,
            groups=groups,
            shown=shown,
            item_look=item_look(gallery, reporter),
            measures=measures,
            guarantees=_guarantees(measures),
            charts=charts(measures),
            inline_svg=inline_svg,
            resampled=resampled(measures),
            share=Share.of,
            percent=percent,
            assessed=assessed_by(gallery.index.calibration),
            gallery=gallery,
            queries=queries,
            options=options,
            versions=f"laplace_metric {__version__}, torch {torch.__version__}, numpy "
            f"{np.__version__}, Python {platform.python_version()}",
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            run=command_text(options),
            most=SHOWN,
        )
    )
    write_work_list(gallery, queries, measures, verdict["made"], labels, options)
    write_atomically(options.output, page)
    reporter.say(verdict["title"])
    for path in filter(None, (options.output, options.table)):
        reporter.say(f"wrote {path}")
    told = {"verdict": verdict["title"], "output": str(options.output)}
    reporter.numbers({**measures.to_json(), **told})


def _shown(
    gallery: LoadedIndex,
    queries: Source,
    groups: list[dict[str, Any]],
    measures: IndexReport,
    made: GuaranteedPrecision | None,
    options: Namespace,
) -> list[dict[str, Any]]:
    """Add the neighbours to the queries of each group; open-set queries are the last group."""
    index, size = gallery.index, options.batch_size
    some = queries.take([row for group in groups for row in group["places"]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluation said it already
        answers = iter(asked(index, some, gallery.classes_of(some), size))
        query = look_of(queries)
        shown = [
            {**g, "queries": [next(answers) for _ in g["places"]], "look": query} for g in groups
        ]
        if measures.ood is not None:
            source = gallery.posterior.source(options.open_set, options, Reporter(quiet=True))
            strange = source.take(evenly(len(source), SHOWN))
            n, notes = measures.ood.items, []
            if measures.ood.unknown is not None:
                notes.append(f"{Share.of(measures.ood.unknown, n).k:,} are unfamiliar")
            if made is not None and made.ood is not None:
                notes.append(f"{Share.of(made.ood, n).k:,} are answered")
            group = {"key": "open_set", "title": "Open-set queries", "note": ", ".join(notes)}
            found = asked(index, strange, None, size)
            shown.append({**group, "n": n, "queries": found, "look": look_of(strange)})
    return shown


def assessed_by(calibration: Calibration | None) -> str:
    """Return which queries made the probabilities of an index, and which the guarantees."""
    if calibration is None:
        return "none"
    n, near = f"{len(calibration.known):,}", f"of {calibration.k} neighbours each"
    if not calibration.cross_fitted:
        return f"guarantees from {n} queries, the probabilities fitted to the other half, {near}"
    of = "items of the index" if calibration.own_items else "queries"
    return (
        f"probabilities and guarantees from {n} {of}, {near}, each assessed by a fit to the others "
        "(cross-fitting)"
    )


def _guarantees(measures: IndexReport) -> list[dict[str, Any]]:
    """Return the rows of the table of thresholds."""
    rows = []
    for made in filter(None, (measures.largest_guarantee, *measures.guarantees)):
        answered, right = counts(made, measures.queries)
        if made.threshold is not None:
            goal = percent(made.guaranteed)
            test = GuaranteeTest(right, made.guaranteed)
            rows.append(
                {"goal": goal, "made": made, "answered": answered, "right": right, "test": test}
            )
    return rows
