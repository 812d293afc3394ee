"""Tables of texts, or of paths of images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from laplace_metric._utils.tables import shown_columns
from laplace_metric.cli._array_source import numbered, strings_of
from laplace_metric.cli._image_source import image_source
from laplace_metric.cli._source import Notify, ReadOptions, Source, given_texts
from laplace_metric.datasets._tables import PATHS, check_listed, column_of
from laplace_metric.errors import InputError

COLUMNS = {
    "image": ("paths of images", PATHS),
    "text": ("texts", ("text",)),
    "label": ("labels", ("label",)),
    "id": ("ids", ("id",)),
}
"""What a column holds, in words, and its usual names."""


def table_source(
    path: Path,
    header: Collection[str],
    cells: Callable[[str], list[str]],
    options: ReadOptions,
    notify: Notify,
) -> Source:
    """Return texts, or images named by their paths; ``cells`` returns those of a column."""
    in_words = options.text_column is not None or "text" in header
    if options.image_column is None and in_words:
        names = columns_named(path, header, ("text", "label", "id"), options, notify)
    else:
        names = columns_named(path, header, ("image", "label"), options, notify)
    filled = {what: cells(name) for what, name in names.items()}
    if "image" in names:
        images = check_listed(path, filled["image"])
        classes = strings_of(path, "label", filled.get("label"), len(images))
        told = {} if options.image_column is None else {"image_column": names["image"]}
        source = image_source(path, images, classes, options, notify)
        return replace(source, options={**source.options, **told})
    if "text" not in names:
        raise InputError(
            f"{path} has no column 'text'. Name the one that holds the texts with --text-column, "
            f"or that of paths of images with --image-column; its columns: {shown_columns(header)}."
        )
    texts = filled["text"]
    return replace(
        given_texts(texts, path),
        ids=strings_of(path, "id", filled.get("id"), len(texts)) or numbered(len(texts)),
        classes=strings_of(path, "label", filled.get("label"), len(texts)),
        options={"text_column": names["text"]},
    )


def columns_named(
    path: Path, header: Collection[str], wanted: Sequence[str], options: ReadOptions, notify: Notify
) -> dict[str, str]:
    """Return names of the columns that are wanted; without an option, those of a usual name."""
    found, guessed = dict[str, str](), list[str]()
    for what, (words, usual) in COLUMNS.items():
        told = getattr(options, f"{what}_column")
        name = column_of(path, header, f"{what}_column", told, usual)
        if name is not None and what in wanted:
            found[what] = name
            guessed += [f"{words} from column {name!r}"] if told is None else []
    if guessed:
        notify(f"{path}: {', '.join(guessed)}")
    return found
