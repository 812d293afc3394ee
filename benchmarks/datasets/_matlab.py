"""MATLAB files of the versions before 7.3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.io import loadmat

from laplace_metric.errors import FileFormatError

Array = npt.NDArray[Any]


def read_mat(path: Path, *fields: str) -> dict[str, Array]:
    """The named variables of a MATLAB file.

    Only whole files are safe to read: bytes changed inside an uncompressed variable can crash
    SciPy's reader, and the process with it. The published files are compressed, with checksums.

    Raises
    ------
    FileFormatError
        If the file is cut short or no MATLAB file, or lacks a variable.

    Examples
    --------
    >>> import tempfile
    >>> from scipy.io import savemat
    >>> path = Path(tempfile.mkdtemp()) / "a.mat"
    >>> savemat(path, {"y": [10, 1]})
    >>> read_mat(path, "y")["y"].tolist()
    [[10, 1]]
    """
    try:
        content = loadmat(path, variable_names=fields)
    except Exception as error:  # damage shows as anything: zlib, struct, type and even name errors
        raise FileFormatError(
            f"{path} is not a whole MATLAB file ({error}). Fetch it again."
        ) from error
    for field in fields:
        if field not in content:
            raise FileFormatError(f"{path} lacks the variable {field!r}. Fetch the original.")
    return {field: np.asarray(content[field]) for field in fields}
