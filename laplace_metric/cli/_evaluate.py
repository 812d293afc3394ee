"""``laplace-metric evaluate``: measure an index on labelled queries."""

from __future__ import annotations

from argparse import Namespace

from laplace_metric.cli._fitted_queries import without_fitted
from laplace_metric.cli._gallery import CALIBRATE, LoadedIndex, load_gallery
from laplace_metric.cli._item_groups import views_of_queries
from laplace_metric.cli._open_source import require_data
from laplace_metric.cli._reporter import Reporter, reporter_of
from laplace_metric.cli._source import Source
from laplace_metric.search import IndexReport

# ``laplace-metric evaluate``: how much the answers of an index can be trusted, in numbers.


def evaluate(options: Namespace) -> None:
    """Measure and print."""
    reporter = reporter_of(options)
    require_data(options)
    report, _ = measured(load_gallery(options.index, options, reporter), options, reporter)
    reporter.say(str(report))
    reporter.numbers(report.to_json())


def measured(
    gallery: LoadedIndex, options: Namespace, reporter: Reporter
) -> tuple[IndexReport, Source]:
    """Return a report of the data that options name, and its queries."""
    queries = gallery.queries(options.data, options, reporter)
    queries.require_classes("evaluation")
    ood, size = None, options.batch_size
    if options.open_set is not None:
        source = gallery.posterior.source(options.open_set, options, reporter)
        ood = source.batches(size)
    of = views_of_queries(options.data, queries, getattr(options, "group_column", None))
    with without_fitted(options.data, options, reporter):
        report = gallery.index.evaluate(
            queries.batches(size),
            gallery.classes_of(queries),
            ood,
            of=of,
            progress=reporter.progress,
        )
    if gallery.index.calibration is None:
        reporter.note(f"{options.index} is not calibrated. {CALIBRATE}")
    return report, queries
