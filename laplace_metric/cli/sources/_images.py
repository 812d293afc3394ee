"""Images of a folder or a table, one image, and texts of the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laplace_metric._utils.progress import tqdm
from laplace_metric.cli.sources._source import (
    IMAGES,
    TEXTS,
    Notify,
    ReadOptions,
    Source,
    require_items,
)
from laplace_metric.datasets._folders import (
    ENDINGS,
    check_listed,
    files_below,
    images_below,
    is_image,
    top_folders,
)
from laplace_metric.datasets._pixels import Pixels, Remedies, is_grey
from laplace_metric.errors import InputError
from laplace_metric.io import digest

OPTIONS = Remedies("leave such files out with --skip-unreadable", "--size")


def image_source(folder: Path, options: ReadOptions, notify: Notify) -> Source:
    """Ids are paths below ``folder``, classes the folders right below it.

    Raises
    ------
    InputError
        For a folder without images, one with images both in class folders and beside them, and
        (when it is read) an image that cannot be read; the message names the file.
    """
    ids, others = images_below(folder)
    if others:
        notify(f"{folder}: {len(others):,} files that are no images are left out")
    return _source_of(folder, ids, top_folders(folder, ids), options, notify)


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
    return _source_of(path, names, classes, options, notify)


def one_image(path: Path, options: ReadOptions, notify: Notify) -> Source:
    """One file, without a class."""
    return listed_images(path, [path.name], None, options, notify)


def _source_of(
    path: Path,
    names: Sequence[str],
    classes: Sequence[str] | None,
    options: ReadOptions,
    notify: Notify,
) -> Source:
    folder = root_of(path)
    pixels, ids = readable_images(folder, list(names), options, notify)
    if classes is not None:
        class_of = dict(zip(names, classes, strict=True))
        classes = tuple(class_of[name] for name in ids)
    files = ((name, folder / name) for name in ids)
    sizes = [(name, file.stat().st_size if file.exists() else -1) for name, file in files]
    return Source(
        path,
        IMAGES,
        tuple(ids),
        classes,
        lambda rows: pixels.batch([ids[row] for row in rows]),
        digest(json.dumps(sizes)),
        {"size": pixels.size, "channels": pixels.channels},
        lambda rows: pixels.hashes([ids[row] for row in rows]),
    )


def root_of(path: Path) -> Path:
    """The folder from which the images of a source are named: itself, or that of a table."""
    return path if path.is_dir() else path.parent


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


def given_texts(texts: Sequence[str], path: Path = Path("--text")) -> Source:
    """Texts that are queries themselves; each is also its id.

    Examples
    --------
    >>> given_texts(["a cat"]).read([0])
    ['a cat']
    """
    content = digest(json.dumps(list(texts)))
    return Source(
        path, TEXTS, tuple(texts), None, lambda rows: [texts[row] for row in rows], content, {}
    )


def require_images(folder: Path) -> None:
    """Raise ``InputError`` unless there is an image below a folder; the first one is enough."""
    found = any(is_image(path.name) for path in files_below(folder))
    require_items(folder, int(found), f"image ({', '.join(ENDINGS)})")


def readable_images(
    folder: Path, names: list[str], options: ReadOptions, notify: Notify
) -> tuple[Pixels, list[str]]:
    """Return how files below a folder are read, and their names; if asked, without unreadable ones.

    Raises
    ------
    InputError
        If none can be read.
    """
    channels = options.channels or 3
    guessed = options.channels is None and options.transform is None
    if guessed and (found := is_grey(folder / names[0])) is not None:  # None: named when it is read
        channels, name = (1, "grey") if found[0] else (3, "RGB")
        first = f"{folder / names[0]} is ({found[1]})"
        notify(f"images are read as {name}, as {first}; --channels chooses")
    pixels = Pixels(folder, options.size, channels, options.transform, remedies=OPTIONS)
    if not options.skip_unreadable:
        return pixels, names
    checks = tqdm(pixels.unreadable(names), desc="Checking", total=len(names), leave=False)
    readable = [name for name, damaged in zip(names, checks, strict=True) if not damaged]
    require_items(folder, len(readable), "image that can be read")
    if len(readable) < len(names):
        skipped = len(names) - len(readable)
        notify(f"skipped {skipped:,} of {len(names):,} images, which cannot be read")
    return pixels, readable
