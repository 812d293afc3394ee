"""``laplace-metric report``: measure, choose what to show, say where from, write the page."""

from __future__ import annotations

import platform
import warnings
from argparse import Namespace
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch

from laplace_metric._utils.version import __version__
from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._index import measured, require_queries
from laplace_metric.cli._output import Reporter, reporter_of
from laplace_metric.cli._parser import run_text
from laplace_metric.cli.pages import templates
from laplace_metric.cli.report._examples import (
    SHOWN,
    Asked,
    LookOf,
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
    headline,
    lacks,
    number_rows,
    percent,
    promised,
)
from laplace_metric.cli.sources import Source
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
        "Calibration": f"promises tested on {n:,} queries, the match probability learnt from as "
        f"many others, of {calibration.k} neighbours each{of}; it looks at "
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


# Some queries of each group, and some strangers, with what they found.


@dataclass(frozen=True)
class ShownGroup:
    """A group with some of its queries.

    Parameters
    ----------
    key, title, note : str
    n : int
        All that belong to it.
    queries : list of Asked
    """

    key: str
    title: str
    note: str
    n: int
    queries: list[Asked]


def shown_groups(
    gallery: LoadedIndex,
    queries: Source,
    groups: tuple[QueryGroup, ...],
    measures: IndexReport,
    options: Namespace,
    reporter: Reporter,
) -> list[ShownGroup]:
    """Every group, and the strangers last, if there are any."""
    items = looks_of_items(gallery, reporter)
    some = queries.take([row for group in groups for row in group.rows])
    looks = looks_of_queries(some), items
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluation said it already
        truth = gallery.classes_of(some)
        found = iter(asked(gallery.index, some, truth, looks, options.batch_size))
        parts = [
            ShownGroup(g.key, g.title, g.note, g.n, [next(found) for _ in g.rows]) for g in groups
        ]
        if measures.ood is not None:
            promise = promised(measures)
            answered = None if promise is None else promise.ood
            parts.append(_strangers(gallery, measures.ood, answered, items, options))
    return parts


def _strangers(
    gallery: LoadedIndex,
    numbers: OODReport,
    answered: float | None,
    items: LookOf,
    options: Namespace,
) -> ShownGroup:
    source = gallery.posterior.source(options.open_set, options, Reporter(quiet=True))
    some = replace(source.take(evenly(len(source), SHOWN)), classes=None)
    looks = looks_of_queries(some), items
    note = ""
    if numbers.unknown is not None:
        note = f"{Share.of(numbers.unknown, numbers.items).k:,} are called unknown"
    if answered is not None:
        note += f", {Share.of(answered, numbers.items).k:,} are answered"
    found = asked(gallery.index, some, None, looks, options.batch_size)
    return ShownGroup("strangers", "Strangers", note, numbers.items, found)


# ``laplace-metric report``: measure, choose what to show, write the page.


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
            calibrated=bool(measures.guarantees),
            most=SHOWN,
        )
    )
    write_atomically(options.output, page)
    reporter.say(verdict.title)
    reporter.say(f"wrote {options.output}")
    reporter.numbers({**measures.to_json(), "output": str(options.output)})


def _promises(measures: IndexReport) -> list[dict[str, Any]]:
    """The rows of the table of thresholds; what cannot be guaranteed for one reason is one row."""
    rows: list[dict[str, Any]] = []
    for promise in (measures.largest_guarantee, *measures.guarantees):
        if promise is None:
            continue
        answered, right = counts(promise, measures.queries)
        goal, why = percent(promise.guaranteed), lacks(promise)
        if why and rows and rows[-1]["lacks"] == why:
            rows[-1]["goal"] += f", {goal}"
            continue
        rows.append({"goal": goal, "promise": promise, "answered": answered,
                     "right": right, "lacks": why})  # fmt: skip
    return rows
