"""Images of a folder, or of the paths that a table lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laplace_metric._utils.progress import tqdm
from laplace_metric.cli._source import IMAGES, Notify, ReadOptions, Source
from laplace_metric.datasets._grey_or_rgb import is_grey
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError
from laplace_metric.io import digest


def image_source(
    path: Path,
    names: list[str],
    classes: Sequence[str] | None,
    options: ReadOptions,
    notify: Notify,
) -> Source:
    """Return images below a folder, or whose paths a table holds; a path is also the id.

    Raises
    ------
    InputError
        If none can be read.
    """
    folder, channels = root_of(path), options.channels or 3
    guessed = options.channels is None and options.transform is None
    if guessed and (found := is_grey(folder / names[0])) is not None:  # None: named when it is read
        channels, name = (1, "grey") if found[0] else (3, "RGB")
        first = f"{folder / names[0]} is ({found[1]})"
        notify(f"images are read as {name}, as {first}; --channels chooses")
    pixels = Pixels(folder, options.size, channels, options.transform)
    ids = names
    if options.skip_unreadable:
        checks = tqdm(pixels.unreadable(names), desc="Checking", total=len(names), leave=False)
        ids = [name for name, damaged in zip(names, checks, strict=True) if not damaged]
    if not ids:
        raise InputError(f"{folder} holds no image that can be read.")
    if skipped := len(names) - len(ids):
        notify(f"skipped {skipped:,} of {len(names):,} images, which cannot be read")
    class_of = dict(zip(names, classes or (), strict=False))
    files = ((name, folder / name) for name in ids)
    sizes = [(name, file.stat().st_size if file.exists() else -1) for name, file in files]
    return Source(
        path,
        IMAGES,
        tuple(ids),
        None if classes is None else tuple(class_of[name] for name in ids),
        lambda rows: pixels.batch([ids[row] for row in rows]),
        digest(json.dumps(sizes)),
        {"size": pixels.size, "channels": pixels.channels},
    )


def root_of(path: Path) -> Path:
    """Return the folder from which images are named: the source itself, or that of a table."""
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
