"""Images named by a table, one file, and texts of the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laplace_metric._utils.files import digest
from laplace_metric.cli.sources._images import readable_images
from laplace_metric.cli.sources._source import (
    IMAGES,
    TEXTS,
    Notify,
    ReadOptions,
    Source,
    require_items,
)
from laplace_metric.errors import InputError


def listed_images(
    path: Path,
    names: Sequence[str],
    classes: Sequence[str] | None,
    options: ReadOptions,
    notify: Notify,
) -> Source:
    """Images whose paths a table holds, as seen from its folder; a path is also the id.

    Raises
    ------
    InputError
        If one is empty, stands twice or is no file; the message names it.
    """
    require_items(path, len(names), "row")
    rows = {name: row for row, name in enumerate(names)}
    if len(rows) < len(names):
        twice = next(name for row, name in enumerate(names) if rows[name] != row)
        raise InputError(f"{path} names {twice} twice. Leave one of the rows out.")
    for name, row in rows.items():
        if not name or not (path.parent / name).is_file():
            raise InputError(
                f"{path}, row {row + 1}: {path.parent / name} is no file. Paths are as seen from "
                "the folder of the table."
            )
    pixels, ids = readable_images(path.parent, list(names), options, notify)
    sizes = [(name, (path.parent / name).stat().st_size) for name in ids]
    return Source(
        path,
        IMAGES,
        tuple(ids),
        None if classes is None else tuple(classes[rows[name]] for name in ids),
        lambda places: pixels.batch([ids[place] for place in places]),
        digest(json.dumps(sizes)),
        {"size": options.size, "channels": pixels.channels},
    )


def one_image(path: Path, options: ReadOptions, notify: Notify) -> Source:
    """One file, without a class."""
    return listed_images(path, [path.name], None, options, notify)


def given_texts(texts: Sequence[str]) -> Source:
    """Texts that are queries themselves; each is also its id.

    Examples
    --------
    >>> given_texts(["a cat"]).read([0])
    ['a cat']
    """
    return Source(
        Path("--text"),
        TEXTS,
        tuple(texts),
        None,
        lambda rows: [texts[row] for row in rows],
        digest(json.dumps(list(texts))),
        {},
    )
