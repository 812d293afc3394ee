"""Some queries of each group, and some strangers, with what they found."""

from __future__ import annotations

import warnings
from argparse import Namespace
from dataclasses import dataclass, replace

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._output import Reporter
from laplace_metric.cli.report._examples import Asked, asked
from laplace_metric.cli.report._groups import SHOWN, QueryGroup, evenly
from laplace_metric.cli.report._looks import LookOf, looks_of_items, looks_of_queries
from laplace_metric.cli.report._verdict import promised
from laplace_metric.cli.report._words import Share
from laplace_metric.cli.sources import Source
from laplace_metric.search import IndexReport, OODReport


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
