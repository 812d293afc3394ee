"""``laplace-metric search``: the neighbours of each query, and how certain each of them is."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from laplace_metric.cli._answers_table import (
    check_asked,
    columns_of,
    guaranteed_of,
    tell_answers,
)
from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._image_source import root_of
from laplace_metric.cli._item_groups import views_of_queries
from laplace_metric.cli._open_source import require_data
from laplace_metric.cli._pictures import Pictures
from laplace_metric.cli._reporter import Reporter, reporter_of
from laplace_metric.cli._result_picture import write_picture
from laplace_metric.cli._source import ARRAYS, IMAGES, TEXTS, given_texts
from laplace_metric.cli._table_files import TABLE_WRITERS
from laplace_metric.errors import InputError


def search(options: Namespace) -> None:
    """Search, show, write."""
    reporter = reporter_of_answers(options)
    if bool(options.text) == (options.queries is not None):
        raise InputError("give QUERIES, which is a file or a folder, or --text: one of the two.")
    _check_views(options)
    require_data(options)
    gallery = load_gallery(options.index, options, reporter)
    posterior, rule = gallery.posterior, guaranteed_of(gallery.index, options, reporter)
    if options.text:
        queries = posterior.checked(given_texts(options.text))
    else:
        queries = posterior.source(options.queries, options, reporter)
    of = None
    if not options.text:
        of = views_of_queries(options.queries, queries, options.group_column)
    if options.picture is not None:
        items = _shown(gallery, queries.kind)
    loader = queries.batches(options.batch_size)
    with reporter.warnings():
        result = gallery.index.search(loader, options.k, of=of, progress=reporter.progress)
    answers = None if rule is None else rule(result)
    columns = columns_of(result, queries.ids, answers)
    if texts := gallery.item_texts(reporter):
        columns["text"] = [texts.get(name, "") for name in columns["id"]]
    if options.picture is not None:
        asked: Sequence[Any] = Pictures(root_of(queries.path), queries.ids)
        if queries.kind != IMAGES:
            asked = list(queries.read(range(len(queries))))
        write_picture(options.picture, result, asked, items, answers)
    tell_answers(columns, len(result), options.k, options, reporter)


def _check_views(options: Namespace) -> None:
    """Refuse views next to options that take single queries."""
    if options.group_column is not None and (options.text or options.picture is not None):
        other = "--text" if options.text else "--picture"
        raise InputError(
            f"--group-column {options.group_column} is for a table of views, and {other} shows "
            "single queries: give one of the two."
        )


def _shown(gallery: LoadedIndex, kind: str) -> Sequence[Any]:
    """Return items to show: texts, or images that are read when they are shown."""
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
    """Return the reporter, whose --output and --picture are checked before the work.

    Raises
    ------
    InputError
        For other endings than can be written, and as ``check_asked``.
    """
    check_asked(options)
    output, figure = options.output, options.picture
    if output is not None and output.suffix not in TABLE_WRITERS:
        raise InputError(f"--output {output}: end it in {', '.join(TABLE_WRITERS)}.")
    if figure is not None and figure.suffix != ".png":
        raise InputError(f"--picture {figure}: end it in .png.")
    return reporter_of(options, output, figure)
