"""Which files of a folder are images, and which class each is of."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from laplace_metric.errors import InputError, LabelError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
"""Of the names of images, in small letters; capitals count the same."""


def images_below(folder: Path) -> tuple[list[str], list[str]]:
    """Paths of the images below a folder, and of its other files, as seen from it, sorted.

    What begins with a dot is left out, links are followed.

    Raises
    ------
    InputError
        If there is no image; the message says what there is. If a folder cannot be listed.
    """
    images, others = list[str](), list[str]()
    for path in files_below(folder):
        (images if is_image(path.name) else others).append(path.relative_to(folder).as_posix())
    if not images:
        raise InputError(f"{folder} holds no image ({', '.join(ENDINGS)}){_instead(others)}.")
    return sorted(images), sorted(others)


def is_image(name: str) -> bool:
    """Whether a file is an image by its name.

    Examples
    --------
    >>> is_image("IMG_0001.JPG"), is_image("IMG_0001.heic")
    (True, False)
    """
    return name.lower().endswith(ENDINGS)


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """The files below a folder that are not hidden; a link that leads back up is not followed.

    Raises
    ------
    InputError
        If a folder cannot be listed.
    """
    here = folder.resolve()
    if here in above:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be listed ({error.strerror}).") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from files_below(Path(entry.path), (*above, here))
        else:
            yield Path(entry.path)


def _instead(others: Sequence[str]) -> str:
    if not others:
        return "; it is empty"
    counts = Counter(PurePosixPath(name).suffix.lower() or "no ending" for name in others)
    listed = ", ".join(f"{n:,} {ending}" for ending, n in counts.most_common(3))
    return f"; its files: {listed}. Convert images to .jpg or .png first"


def top_folders(folder: Path, ids: Sequence[str]) -> tuple[str, ...] | None:
    """The folder right below the root that each image lies in; None where none does.

    Raises
    ------
    InputError
        If some images lie in such folders and some beside them.

    Examples
    --------
    >>> top_folders(Path("photos"), ["cat/1.jpg", "cat/2024/2.jpg", "dog/1.jpg"])
    ('cat', 'cat', 'dog')
    """
    beside = [name for name in ids if "/" not in name]
    if not beside:
        return tuple(name.split("/", 1)[0] for name in ids)
    if len(beside) < len(ids):
        within = next(name for name in ids if "/" in name)
        raise InputError(
            f"{folder} holds images in class folders ({within}) and beside them ({beside[0]}): "
            "move them all into class folders, or none."
        )
    return None


def labels_by(label_of: Callable[[str], Any], ids: Sequence[str]) -> tuple[str, ...]:
    """What a user's function makes of each path.

    Raises
    ------
    LabelError
        If it fails, or gives anything but a name.
    """
    labels = []
    for name in ids:
        try:
            label = label_of(name)
        except Exception as error:
            raise LabelError(f"label_of({name!r}) fails: {error!r}.") from error
        if not isinstance(label, str) or not label:
            raise LabelError(f"label_of({name!r}) is {label!r:.60}: return the name of a class.")
        labels.append(label)
    return tuple(labels)


def check_listed(table: Path, names: Sequence[str]) -> None:
    """Check that each path of a table is a file, as seen from its folder, and stands once.

    Raises
    ------
    InputError
        If not; the message names the row.
    """
    if not names:
        raise InputError(f"{table} holds no row.")
    rows = {name: row for row, name in enumerate(names)}
    if len(rows) < len(names):
        twice = next(name for row, name in enumerate(names) if rows[name] != row)
        raise InputError(f"{table} names {twice} twice. Leave one of the rows out.")
    for name, row in rows.items():
        if not name or not (table.parent / name).is_file():
            raise InputError(
                f"{table}, row {row + 1}: {table.parent / name} is no file. Paths are as seen from "
                "the folder of the table."
            )
