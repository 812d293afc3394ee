"""Images named by a table, one file, and texts of the command line."""

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
    own = None if classes is None else tuple(classes[rows[name]] for name in ids)
    return _source_of(path, pixels, tuple(ids), own)


def _source_of(
    path: Path, pixels: Pixels, ids: tuple[str, ...], classes: tuple[str, ...] | None
) -> Source:
    return Source(
        path,
        IMAGES,
        ids,
        classes,
        lambda rows: pixels.batch([ids[row] for row in rows]),
        digest_of_files(root_of(path), ids),
        {"size": pixels.size, "channels": pixels.channels},
        lambda rows: pixels.hashes([ids[row] for row in rows]),
    )


def root_of(path: Path) -> Path:
    """The folder from which the images of a source are named: itself, or that of a table."""
    return path if path.is_dir() else path.parent


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


# A folder of images: ``DIR/<class>/*.png``, or without classes ``DIR/*.png``.


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
    pixels, ids = readable_images(folder, ids, options, notify)
    return _source_of(folder, pixels, tuple(ids), top_folders(folder, ids))


def digest_of_files(folder: Path, names: Sequence[str]) -> str:
    """Hash names and sizes; a dangling link, reported when it is read, has none."""
    paths = ((name, folder / name) for name in names)
    return digest(json.dumps([(name, p.stat().st_size if p.exists() else -1) for name, p in paths]))


def require_images(folder: Path) -> None:
    """Check that there is an image below a folder, without a look at the others.

    Raises
    ------
    InputError
        If not.
    """
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
    channels = options.channels or _guess_channels(folder / names[0], options, notify)
    pixels = Pixels(folder, options.size, channels, options.transform, remedies=OPTIONS)
    return pixels, _readable(names, pixels, notify) if options.skip_unreadable else names


def _guess_channels(first: Path, options: ReadOptions, notify: Notify) -> int:
    if options.transform is not None:
        return 3
    if (found := is_grey(first)) is None:
        return 3  # an image that cannot be read is named when it is read
    grey, mode = found
    name = "grey" if grey else "RGB"
    notify(f"images are read as {name}, as {first} is ({mode}); --channels chooses")
    return 1 if grey else 3


def _readable(ids: list[str], pixels: Pixels, notify: Notify) -> list[str]:
    """The images that can be read, after one reading of all of them."""
    checks = tqdm(pixels.unreadable(ids), desc="Checking", total=len(ids), leave=False)
    readable = [name for name, why in zip(ids, checks, strict=True) if why is None]
    require_items(pixels.folder, len(readable), "image that can be read")
    if len(readable) < len(ids):
        notify(f"skipped {len(ids) - len(readable):,} of {len(ids):,} images, which cannot be read")
    return readable
