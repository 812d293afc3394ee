"""``laplace-metric report``: measure, choose what to show, say where from, write the page."""

from __future__ import annotations

import platform
import warnings
from argparse import Namespace
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch

from laplace_metric._utils.version import __version__
from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._index import measured, require_queries
from laplace_metric.cli._output import Reporter, reporter_of
from laplace_metric.cli._parser import run_text
from laplace_metric.cli._sources import Source
from laplace_metric.cli.pages import templates
from laplace_metric.cli.report._examples import (
    SHOWN,
    Asked,
    QueryGroup,
    asked,
    evenly,
    grouped,
    looks_of_items,
    looks_of_queries,
)
from laplace_metric.cli.report._verdict import (
    Share,
    charts,
    counts,
    guaranteed,
    headline,
    lacks,
    number_rows,
    percent,
)
from laplace_metric.io import write_atomically
from laplace_metric.search import IndexReport
from laplace_metric.search._report import OODReport

DIGITS = 16
"""Of a hash; enough to tell data apart."""


def provenance(gallery: LoadedIndex, queries: Source, options: Namespace) -> dict[str, str]:
    """Collect the facts by which a page can be repeated and identified."""
    open_set = {} if options.open_set is None else {"Open-set queries": str(options.open_set)}
    classes = len(set(queries.classes or ()))
    return {
        "Index": f"{options.index}: {len(gallery.index):,} items, ranked by "
        f"{gallery.index.rank_by}, engine {gallery.index.kind!r}",
        **_items(gallery),
        "Queries": f"{options.data}: {len(queries):,} items of {classes:,} classes, "
        f"hash {queries.fingerprint[:DIGITS]}",
        **open_set,
        **_calibration(gallery),
        "Model": gallery.posterior.recipe.model or "none: embeddings",
        **_posterior(gallery),
        "Versions": f"laplace_metric {__version__}, torch {torch.__version__}, "
        f"numpy {np.__version__}, Python {platform.python_version()}",
        "Written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _items(gallery: LoadedIndex) -> dict[str, str]:
    origin = gallery.origin
    if origin.data is None:
        return {"Items": "not known: the index was saved in Python"}
    kept = "none of it held out"
    if origin.holdout is not None:
        kept = f"{percent(origin.holdout)} of it held out, seed {origin.seed}"
    return {"Items": f"{origin.data}: {kept}, hash {origin.fingerprint[:DIGITS]}"}


def _calibration(gallery: LoadedIndex) -> dict[str, str]:
    calibration, origin = gallery.index.calibration, gallery.origin
    if calibration is None:
        return {"Calibration": "none"}
    n, of = len(calibration.known), ""
    if origin.calibrated_with is not None:
        of = f", hash {origin.calibrated_with[:DIGITS]}"
    return {
        "Calibration": f"guarantees from {n:,} queries, the match probability fitted on as many "
        f"others, of {calibration.k} neighbours each{of}; it uses "
        f"{', '.join(calibration.looks_at)}"
    }


def _posterior(gallery: LoadedIndex) -> dict[str, str]:
    embedder, recipe = gallery.posterior.embedder, gallery.posterior.recipe
    settings = embedder.settings
    rows = {
        "Posterior": f"structure {settings.structure}, hessian {settings.hessian}, distance "
        f"{settings.distance}, prior precision {settings.prior_precision:.3g}"
    }
    if recipe.data:
        rows["Fitted to"] = f"{recipe.data}, hash {recipe.fingerprint[:DIGITS]}, seed {recipe.seed}"
    return rows


# Some queries of each group, and some open-set queries, with what they found.


def shown_groups(
    gallery: LoadedIndex,
    queries: Source,
    groups: tuple[QueryGroup, ...],
    measures: IndexReport,
    options: Namespace,
    reporter: Reporter,
) -> list[QueryGroup]:
    """Add the neighbours to the queries of each group; open-set queries are the last group."""
    look_of_item = looks_of_items(gallery, reporter)

    def found(source: Source, truth: Any) -> list[Asked]:
        looks = looks_of_queries(source), look_of_item
        return asked(gallery.index, source, truth, looks, options.batch_size)

    some = queries.take([row for group in groups for row in group.rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluation said it already
        answers = iter(found(some, gallery.classes_of(some)))
        shown = [replace(g, queries=[next(answers) for _ in g.rows]) for g in groups]
        if measures.ood is not None:
            source = gallery.posterior.source(options.open_set, options, Reporter(quiet=True))
            strange = replace(source.take(evenly(len(source), SHOWN)), classes=None)
            group = open_set_group(measures, measures.ood)
            shown.append(replace(group, queries=found(strange, None)))
    return shown


def open_set_group(measures: IndexReport, numbers: OODReport) -> QueryGroup:
    """Open-set queries, and how many of them are called unknown or answered."""
    notes, guarantee = [], guaranteed(measures)
    if numbers.unknown is not None:
        notes.append(f"{Share.of(numbers.unknown, numbers.items).k:,} are called unknown")
    if guarantee is not None and guarantee.ood is not None:
        notes.append(f"{Share.of(guarantee.ood, numbers.items).k:,} are answered")
    return QueryGroup("open_set", "Open-set queries", ", ".join(notes), numbers.items)


# ``laplace-metric report``: measure, choose what to show, write the page.


def report(options: Namespace) -> None:
    """Measure and write the page."""
    reporter = reporter_of(options, options.output)
    require_queries(options)
    gallery = load_gallery(options.index, options, reporter)
    measures, queries = measured(gallery, options, reporter)
    verdict = headline(measures)
    groups = grouped(measures, None if verdict.guarantee is None else verdict.guarantee.threshold)
    page = (
        templates()
        .get_template("trust.html.j2")
        .render(
            verdict=verdict,
            groups=groups,
            queries=measures.queries,
            shown=shown_groups(gallery, queries, groups, measures, options, reporter),
            guarantees=_guarantees(measures),
            charts=charts(measures),
            numbers=number_rows(measures),
            facts=provenance(gallery, queries, options),
            run=run_text(options),
            calibrated=bool(measures.guarantees),
            most=SHOWN,
        )
    )
    write_atomically(options.output, page)
    reporter.say(verdict.title)
    reporter.say(f"wrote {options.output}")
    reporter.numbers({**measures.to_json(), "output": str(options.output)})


def _guarantees(measures: IndexReport) -> list[dict[str, Any]]:
    """The rows of the table of thresholds; what cannot be guaranteed for one reason is one row."""
    rows: list[dict[str, Any]] = []
    for made in filter(None, (measures.largest_guarantee, *measures.guarantees)):
        answered, right = counts(made, measures.queries)
        goal, why = percent(made.guaranteed), lacks(made)
        if why and rows and rows[-1]["lacks"] == why:
            rows[-1]["goal"] += f", {goal}"
            continue
        row = {"goal": goal, "made": made, "answered": answered, "right": right, "lacks": why}
        rows.append(row)
    return rows
