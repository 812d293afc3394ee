"""``laplace-metric evaluate``: how much the answers of an index can be trusted, in numbers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from laplace_metric.cli._gallery import LoadedIndex, load_gallery, without_fitted
from laplace_metric.cli._output import Reporter, reporter_of
from laplace_metric.cli.sources import Source, require_source
from laplace_metric.search import IndexReport


def evaluate(options: Namespace) -> None:
    """Measure and print."""
    reporter = reporter_of(options)
    require_queries(options)
    report, _ = measured(load_gallery(options.index, options, reporter), options, reporter)
    reporter.say(str(report))
    reporter.numbers(report.to_json())


def require_queries(options: Namespace) -> None:
    """Check the paths, before a model is loaded for them.

    Raises
    ------
    InputError
        If one cannot be read.
    """
    for path in filter(None, (options.data, options.open_set)):
        require_source(path)


def measured(
    gallery: LoadedIndex, options: Namespace, reporter: Reporter
) -> tuple[IndexReport, Source]:
    """A report of the data that options name, and the queries that it is of."""
    queries = gallery.queries(options.data, options, reporter)
    queries.require_classes("evaluation")
    ood = None
    if options.open_set is not None:
        source = gallery.posterior.source(options.open_set, options, reporter)
        ood = _watched(source, "Out-of-distribution", options, reporter)
    with without_fitted(options.data, options, reporter):
        loader = _watched(queries, "Evaluating", options, reporter)
        report = gallery.index.evaluate(loader, gallery.classes_of(queries), ood)
    if gallery.index.calibration is None:
        reporter.note(
            f"{options.index} is not calibrated: fit with --holdout or index with --calibrate"
        )
    return report, queries


def _watched(source: Source, title: str, options: Namespace, reporter: Reporter) -> Iterator[Any]:
    """Batches, with a bar from the first one on."""
    yield from reporter.watch(title, source.inputs(options.batch_size))
