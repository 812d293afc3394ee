"""``laplace-metric evaluate``: how much the answers of an index can be trusted, in numbers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from laplace_metric.cli._gallery import LoadedIndex, open_gallery
from laplace_metric.cli._output import Reporter, reporter_of
from laplace_metric.cli.sources import Source
from laplace_metric.search import IndexReport


def evaluate(options: Namespace) -> None:
    """Measure and print."""
    voice = reporter_of(options)
    report, _ = measured(open_gallery(options.index, options, voice), options, voice)
    voice.say(str(report))
    voice.numbers(report.to_json())


def measured(
    gallery: LoadedIndex, options: Namespace, voice: Reporter
) -> tuple[IndexReport, Source]:
    """A report of the data that options name, and the queries that it is of."""
    queries = gallery.queries(options.data, options, voice)
    queries.require_classes("evaluation")
    ood = None
    if options.strangers is not None:
        source = gallery.opened.source(options.strangers, options, voice)
        ood = _watched(source, "Out-of-distribution", options, voice)
    with voice.warnings():
        loader = _watched(queries, "Evaluating", options, voice)
        report = gallery.index.evaluate(loader, queries.classes, ood)
    if gallery.index.calibration is None:
        voice.note(f"{options.index} is not calibrated: build it with --calibrate or --holdout")
    return report, queries


def _watched(source: Source, title: str, options: Namespace, voice: Reporter) -> Iterator[Any]:
    """Batches, with a bar from the first one on."""
    yield from voice.watch(title, source.inputs(options.batch_size))
