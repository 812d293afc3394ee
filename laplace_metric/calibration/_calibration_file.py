"""A calibration as one file of numbers, which is read without torch, and as a part of an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laplace_metric._utils.validation import as_path, refuse_reloaded
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration.probability._features import FEATURES
from laplace_metric.errors import InputError
from laplace_metric.io import Fields, Kind, Part, SavedFile, record, restored, write

CALIBRATION = Kind("calibration", "a saved calibration", 8)


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write one file: weights, knots, held-out statistics. ``read_calibration`` reads it.

    Parameters
    ----------
    calibration : Calibration
        Calibration that ``index.calibrate`` returned.
    path : path
        Name of a safetensors file, such as "calibration.safetensors".

    Raises
    ------
    InputError
        For anything but a calibration, and if ``path`` is a folder.
    WriteError
        If it cannot be written; an old file is kept.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import torch
    >>> from laplace_metric import LaplaceEmbedder
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(400) % 4
    >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
    >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    >>> index = embedder.index(x[100:200], y[100:200], progress=False)
    >>> calibration = index.calibrate(x[200:300], y[200:300])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_calibration(calibration, f"{folder}/calibration.safetensors")
    ...     again = read_calibration(f"{folder}/calibration.safetensors")
    >>> np.array_equal(again.probability, calibration.probability)
    True
    """
    if not isinstance(calibration, Calibration):
        refuse_reloaded("calibration", calibration)
        raise InputError(f"calibration is a {type(calibration).__name__}: pass index.calibration.")
    write(as_path("path", path), calibration_part(calibration))


def read_calibration(path: str | Path) -> Calibration:
    """Read the file of ``write_calibration``.

    Raises
    ------
    FileFormatError
        For a damaged file, or one of another program or a newer version.
    """
    saved = SavedFile(as_path("path", path), torch=False)
    with saved.checked():
        part = saved.part(CALIBRATION)
        return calibration_of(part.content, part.arrays)


def calibration_part(calibration: Calibration) -> Part:
    """Return a calibration as a part of a file."""
    return Part(CALIBRATION, *record(calibration))


def calibration_of(content: dict[str, Any], arrays: Mapping[str, Any]) -> Calibration:
    """Restore what ``calibration_part`` returned.

    Raises
    ------
    FileFormatError
        If a value is missing, of another type or shape, or out of its range.
    """
    return restored(Calibration, Fields(content, "calibration"), arrays, F=len(FEATURES))
