"""Images named by a table, one file, and texts of the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laplace_metric._utils.files import digest
from laplace_metric.cli.sources._images import digest_of_files, readable_images
from laplace_metric.cli.sources._source import (
    IMAGES,
    TEXTS,
    Notify,
    ReadOptions,
    Source,
)
from laplace_metric.datasets.folders import check_listed
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
    check_listed(path, names)
    pixels, ids = readable_images(path.parent, list(names), options, notify)
    rows = {name: row for row, name in enumerate(names)}
    return Source(
        path,
        IMAGES,
        tuple(ids),
        None if classes is None else tuple(classes[rows[name]] for name in ids),
        lambda places: pixels.batch([ids[place] for place in places]),
        digest_of_files(path.parent, ids),
        {"size": options.size, "channels": pixels.channels},
        lambda places: pixels.hashes([ids[place] for place in places]),
    )


def one_image(path: Path, options: ReadOptions, notify: Notify) -> Source:
    """One file, without a class."""
    return listed_images(path, [path.name], None, options, notify)


def path_below(folder: Path, name: str) -> Path:
    """Return where a named file lies once all links are followed.

    Raises
    ------
    InputError
        If that is outside of ``folder``.
    """
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(
            f"{folder / name} leads out of {folder}, so it is not read. Give --data with a folder "
            "that holds all items, without links to other places."
        )
    return path


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
