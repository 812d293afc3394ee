"""A file or a folder of items, opened as what it is."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from laplace_metric._utils.tables import TABLES, read_columns, require_table
from laplace_metric.cli._array_source import ARRAY_FILES, array_source
from laplace_metric.cli._image_source import image_source
from laplace_metric.cli._item_groups import require_groups
from laplace_metric.cli._source import Notify, ReadOptions, Source
from laplace_metric.cli._table_source import table_source
from laplace_metric.datasets._image_files import files_below, images_below, is_image
from laplace_metric.datasets._path_labels import top_folders
from laplace_metric.datasets._tables import check_listed
from laplace_metric.errors import InputError


def open_source(
    path: Path, options: ReadOptions | None = None, notify: Notify = lambda _: None
) -> Source:
    """Return the data of a folder of images, or of a file, by its suffix.

    Parameters
    ----------
    path : Path
        Folder ``DIR/<class>/*.png`` or ``DIR/*.png``, an image, or a file .csv, .tsv, .npy, .npz or
        .safetensors.
    options : ReadOptions or None
        Options of reading. None, the default: all are guessed.
    notify : callable
        Function that is called with a line for each guess. Default: a function that ignores it.

    Raises
    ------
    InputError
        If there is no such path, it is of another kind, or cannot be read.
    """
    options = ReadOptions() if options is None else options
    require_source(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        names, others = images_below(path)
        if others:
            notify(f"{path}: {len(others):,} files that are no images are left out")
        return image_source(path, names, top_folders(path, names), options, notify)
    if suffix not in (*TABLES, *ARRAY_FILES):
        return image_source(path, check_listed(path, [path.name]), None, options, notify)
    if suffix in TABLES:
        columns = read_columns(path)
        return table_source(path, columns, columns.__getitem__, options, notify)
    return array_source(path, ARRAY_FILES[suffix](path), options)


def require_source(path: Path) -> None:
    """Check that a path is of a kind that can be read, without reading it.

    Raises
    ------
    InputError
        If there is no such path, it is of another kind, or a folder without images.
    """
    if path.is_dir():
        if not any(map(is_image, files_below(path))):
            images_below(path)  # says what there is instead
        return
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    tables = (*TABLES, *ARRAY_FILES)
    if not path.is_file() or not (path.suffix.lower() in tables or is_image(path)):
        raise InputError(
            f"{path} is of no kind that can be read: give a folder of images, an image, or a file "
            f"that ends in {', '.join(tables)}."
        )


DATA = ("data", "calibrate", "queries", "open_set", "reference", "item_data")
"""Options that name data."""


def require_data(options: Namespace) -> None:
    """Check the paths of data that options name, before a model is loaded for them.

    Raises
    ------
    InputError
        If one cannot be read, or is to have groups of rows and is no table.
    """
    given = {name: getattr(options, name, None) for name in DATA}
    for path in given.values():
        if path is not None:
            require_source(path)
    if (levels := getattr(options, "coarser", None)) is not None:
        require_table(levels)
    column = getattr(options, "group_column", None)
    grouped = given["queries"] or given["calibrate"] or given["data"]
    if column is not None and grouped is not None:
        require_groups(grouped, column)
