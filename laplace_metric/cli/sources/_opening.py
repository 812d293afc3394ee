"""Which reader a path gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from laplace_metric.cli.sources._arrays import npy_source, npz_source, safetensors_source
from laplace_metric.cli.sources._images import image_source
from laplace_metric.cli.sources._source import Notify, ReadOptions, Source
from laplace_metric.cli.sources._texts import csv_source, parquet_source
from laplace_metric.errors import InputError

READERS: dict[str, Callable[[Path, ReadOptions, Notify], Source]] = {
    ".csv": csv_source,
    ".tsv": csv_source,
    ".parquet": parquet_source,
    ".npy": npy_source,
    ".npz": npz_source,
    ".safetensors": safetensors_source,
}


def open_source(
    path: Path, reading: ReadOptions | None = None, say: Notify = lambda _: None
) -> Source:
    """A folder of images, or a file that its name's end tells.

    Parameters
    ----------
    path : Path
        ``DIR/<class>/*.png``, ``DIR/*.png``, or a .csv, .tsv, .parquet, .npy, .npz, .safetensors.
    reading : Reading or None
    say : callable
        Gets each guess in words.

    Raises
    ------
    InputError
        If there is no such path, it is of another kind, or cannot be read.
    """
    how = ReadOptions() if reading is None else reading
    if path.is_dir():
        return image_source(path, how, say)
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    if path.suffix.lower() not in READERS:
        raise InputError(
            f"{path} is of no kind that can be read: give a folder of images, or a file that ends "
            f"in {', '.join(READERS)}."
        )
    return READERS[path.suffix.lower()](path, how, say)
