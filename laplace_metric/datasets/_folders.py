"""Find images on disk and their classes: in folders, or in a table of paths."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor

from laplace_metric._utils.tables import read_table
from laplace_metric._utils.validation import as_path, check_count, check_function
from laplace_metric.datasets._image_folder import ImageFolder
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError, LabelError

_LOG = logging.getLogger(__name__)
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
    """Return whether a file is an image by its name.

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
        If some images lie in such folders and some next to them.

    Examples
    --------
    >>> top_folders(Path("photos"), ["cat/1.jpg", "cat/2024/2.jpg", "dog/1.jpg"])
    ('cat', 'cat', 'dog')
    """
    outside = [name for name in ids if "/" not in name]
    if not outside:
        return tuple(name.split("/", 1)[0] for name in ids)
    if len(outside) < len(ids):
        within = next(name for name in ids if "/" in name)
        raise InputError(
            f"{folder} holds images in class folders ({within}) and next to them ({outside[0]}): "
            "move them all into class folders, or none."
        )
    return None


def labels_by(label_of: Callable[[str], Any], ids: Sequence[str]) -> tuple[str, ...]:
    """Apply a user's function to each path.

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


TABLES = (".csv", ".tsv")
PATHS = ("path", "image")
LABEL = "label"
Names = tuple[str, ...]


def load_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    crop: bool = True,
    channels: int = 3,
    transform: Callable[[Any], Tensor] | None = None,
    label_of: Callable[[str], str] | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    skip_unreadable: bool = False,
) -> ImageFolder:
    """A folder of images, one folder a class, or a table that lists images; read when needed.

    Parameters
    ----------
    path : path
        ``photos`` with ``photos/<class>/*.jpg``, however deep, or without classes
        ``photos/*.jpg``; or a .csv or .tsv of paths as seen from its own folder. Files are images
        by their ending, in small letters or capitals; hidden ones are left out, links are followed.
    size : int or None
        Side of the square images in pixels. None: as they are, and then all of one size.
    crop : bool
        True, as in `load`: the shorter side is scaled to ``size``, then the centre cut out. False,
        as ``laplace-metric --size`` does: the image is scaled to the square.
    channels : {3, 1}
        RGB or grey. Transparent images are put on white.
    transform : callable or None
        PIL image -> tensor [C, H, W]: the preprocessing that a model comes with, or a
        `CentreCrop`; instead of ``size``.
    label_of : callable or None
        Path as seen from the folder -> name of its class. None: the first folder of it, or the
        column of the table.
    path_column, label_column : str or None
        Of a table. None: ``path`` or ``image``; ``label``, if there is one.
    skip_unreadable : bool
        Read every image once, and leave out those that cannot be (the log names them).

    Returns
    -------
    ImageFolder
        Images turned upright as the camera noted (Exif), classes by name, ids by path.

    Raises
    ------
    InputError
        If there is no such path or no image, or images stand both in class folders and next to
        them; for options out of range. An image that cannot be read is told when it is read.
    LabelError
        If ``label_of`` gives no name, or a label of the table is empty.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> photos = Path(tempfile.mkdtemp()) / "photos"
    >>> for name, colour in (("cherry", "red"), ("lime", "green")):
    ...     (photos / name).mkdir(parents=True)
    ...     Image.new("RGB", (30, 20), colour).save(photos / name / "1.JPG")
    >>> folder = load_folder(photos, size=8)
    >>> folder
    ImageFolder('photos', 2 images, 2 classes)
    >>> folder.ids.tolist(), folder.labels.tolist(), folder.pixels().shape
    (['cherry/1.JPG', 'lime/1.JPG'], ['cherry', 'lime'], torch.Size([2, 3, 8, 8]))
    """
    place = as_path("path", path)
    if size is not None:
        check_count("size", size)
    if channels not in (1, 3) or isinstance(channels, bool):
        raise InputError(f"channels={channels!r}: pass 3 for RGB or 1 for grey.")
    if transform is not None and size is not None:
        raise InputError(f"size={size} and a transform: pass one of the two.")
    if transform is not None and not callable(transform):
        kind = type(transform).__name__
        raise InputError(f"transform is a {kind}: pass a function of a PIL image.")
    if label_of is not None:
        check_function("label_of", label_of, "path")
    if place.is_dir():
        if path_column is not None or label_column is not None:
            raise InputError(
                f"{place} is a folder: path_column and label_column are of a table (.csv, .tsv)."
            )
        folder, (ids, others) = place, images_below(place)
        if others:
            _LOG.info("%s: %d files that are no images are left out", place, len(others))
        labels = top_folders(place, ids) if label_of is None else None
    else:
        folder, (ids, labels) = place.parent, _listed(place, path_column, label_column)
    if label_of is not None:
        labels = labels_by(label_of, ids)
    reader = Pixels(folder, size, channels, transform, crop)
    whole = ImageFolder(place.name or str(place), ids, labels, reader)
    damaged = whole.unreadable() if skip_unreadable else ()
    if not damaged:
        return whole
    if len(damaged) == len(whole):
        reader.decoded(ids[0])  # which says why
    _LOG.warning("left out of %r: %s", whole.name, ", ".join(damaged))
    return whole.subset([name not in damaged for name in whole.ids.tolist()])


def _listed(table: Path, path_column: Any, label_column: Any) -> tuple[list[str], Names | None]:
    """Paths and labels of a table."""
    if not table.exists():
        raise InputError(f"path={str(table)!r} does not exist: pass a folder, or a .csv of paths.")
    if table.suffix.lower() not in TABLES:
        raise InputError(f"path={str(table)!r} is no folder: pass one, or a .csv or .tsv of paths.")
    header, rows = read_table(table)
    paths = _column(table, header, "path_column", path_column, PATHS)
    own = _column(table, header, "label_column", label_column, (LABEL,))
    if paths is None:
        raise InputError(
            f"{table} has no column {' or '.join(map(repr, PATHS))}: name the one that holds the "
            f"paths with path_column; its columns: {_names(header)}."
        )
    ids = [row[paths] for row in rows]
    check_listed(table, ids)
    labels = None if own is None else tuple(row[own] for row in rows)
    if labels is not None and "" in labels:
        row = labels.index("") + 1
        raise LabelError(f"{table}: row {row} has an empty label. Fill it in, or leave it out.")
    return ids, labels


def _column(
    table: Path, header: Sequence[str], option: str, name: Any, usual: Sequence[str]
) -> int | None:
    """Place of the column that an option names, or has a usual name."""
    if name is not None and name not in header:
        raise InputError(f"{option}={name!r}: {table} has the columns {_names(header)}.")
    known = (place for place in (usual if name is None else [name]) if place in header)
    chosen = next(known, None)
    return None if chosen is None else list(header).index(chosen)


def _names(header: Sequence[str]) -> str:
    return ", ".join(map(repr, header)) or "none"
