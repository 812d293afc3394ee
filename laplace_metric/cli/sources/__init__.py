"""Data on disk as batches: folders of images, tables of texts, files of arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from laplace_metric._utils.tables import read_table
from laplace_metric.cli.sources._images import (
    OPTIONS,
    given_texts,
    image_source,
    one_image,
    path_below,
    readable_images,
    require_images,
    root_of,
)
from laplace_metric.cli.sources._source import (
    ARRAYS,
    IMAGES,
    TEXTS,
    Batches,
    Notify,
    ReadOptions,
    Source,
)
from laplace_metric.cli.sources._tables import (
    EMBEDDING,
    csv_source,
    npy_source,
    npz_source,
    parquet_source,
    pyarrow,
    safetensors_source,
)
from laplace_metric.datasets._folders import ENDINGS
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError

__all__ = [
    "ARRAYS",
    "EMBEDDING",
    "IMAGES",
    "OPTIONS",
    "TEXTS",
    "Batches",
    "Notify",
    "Pixels",
    "ReadOptions",
    "Source",
    "given_texts",
    "open_source",
    "path_below",
    "pyarrow",
    "read_table",
    "readable_images",
    "require_source",
    "root_of",
]

READERS: dict[str, Callable[[Path, ReadOptions, Notify], Source]] = {
    ".csv": csv_source,
    ".tsv": csv_source,
    ".parquet": parquet_source,
    ".npy": npy_source,
    ".npz": npz_source,
    ".safetensors": safetensors_source,
}


def open_source(
    path: Path, options: ReadOptions | None = None, notify: Notify = lambda _: None
) -> Source:
    """A folder of images, or a file whose suffix tells its format.

    Parameters
    ----------
    path : Path
        ``DIR/<class>/*.png``, ``DIR/*.png``, an image, or a .csv, .tsv, .parquet, .npy,
        .npz, .safetensors.
    options : ReadOptions or None
    notify : callable
        Gets a line for each guess.

    Raises
    ------
    InputError
        If there is no such path, it is of another kind, or cannot be read.
    """
    options = ReadOptions() if options is None else options
    require_source(path)
    if path.is_dir():
        return image_source(path, options, notify)
    suffix = path.suffix.lower()
    reader = one_image if suffix in ENDINGS else READERS[suffix]
    return reader(path, options, notify)


def require_source(path: Path) -> None:
    """Check that a path is of a kind that can be read, without reading it.

    Raises
    ------
    InputError
        If there is no such path, it is of another kind, or a folder without images.
    """
    if path.is_dir():
        return require_images(path)
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    if path.suffix.lower() not in (*READERS, *ENDINGS):
        raise InputError(
            f"{path} is of no kind that can be read: give a folder of images, an image, or a file "
            f"that ends in {', '.join(READERS)}."
        )
