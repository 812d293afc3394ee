"""Read an npz archive of plain arrays, never of pickled objects."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric.errors import FileFormatError


def read_npz(path: Path, *fields: str) -> dict[str, npt.NDArray[Any]]:
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
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, TypeError) as error:
        raise FileFormatError(f"{path} is not an npz file of arrays ({error}).") from error
