"""Read npy and npz files of plain arrays, never of pickled objects."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric.errors import FileFormatError

Array = npt.NDArray[Any]
_DAMAGE = (ValueError, EOFError, OSError, TypeError, zipfile.BadZipFile, zlib.error)


def read_npz(path: Path, *fields: str) -> dict[str, Array]:
    """The named arrays of an npz file.

    Raises
    ------
    FileFormatError
        If the file is no npz archive of plain arrays, or lacks a field.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {field: archive[field] for field in fields}
    except KeyError as error:
        raise FileFormatError(f"{path} lacks a field: {error.args[0]}.") from error
    except _DAMAGE as error:
        raise FileFormatError(f"{path} is not an npz file of arrays ({error}).") from error


def read_npy(path: Path) -> Array:
    """The array of an npy file; raises FileFormatError where it holds none."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except _DAMAGE as error:
        raise FileFormatError(f"{path} is not an npy file of an array ({error}).") from error
