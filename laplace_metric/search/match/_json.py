"""A calibration as one JSON file of numbers, for services that have no index."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric._utils.files import MALFORMED, SEAL, sealed, write_atomically
from laplace_metric._utils.validation import as_path
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.search.match._calibration import Calibration
from laplace_metric.search.match._storage import calibration_from_json, calibration_to_json

FORMAT, VERSION = "laplace_metric.calibration", 1
DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}
DTYPES |= {"bool": torch.bool, "uint8": torch.uint8, "int32": torch.int32}
"""Of the numbers that a calibration holds."""


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write one JSON file: weights, knots, held-out statistics. ``read_calibration`` reads it.

    Raises
    ------
    InputError
        For anything but a calibration.
    WriteError
        If it cannot be written; an old file is kept.

    Examples
    --------
    >>> import tempfile
    >>> from laplace_metric import LaplaceEmbedder
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(400) % 4
    >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
    >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    >>> index = embedder.index(x[100:200], y[100:200], progress=False)
    >>> calibration = index.calibrate(x[200:300], y[200:300])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_calibration(calibration, f"{folder}/calibration.json")
    ...     again = read_calibration(f"{folder}/calibration.json")
    >>> torch.equal(again.probability, calibration.probability)
    True
    """
    if not isinstance(calibration, Calibration):
        raise InputError(f"calibration is a {type(calibration).__name__}: pass index.calibration.")
    content, tensors = calibration_to_json(calibration)
    numbers = {name: _to_json(tensor) for name, tensor in tensors.items()}
    whole = {"format": FORMAT, "version": VERSION, "calibration": content, "tensors": numbers}
    write_atomically(as_path("path", path), json.dumps(sealed(whole), allow_nan=False))


def read_calibration(path: str | Path) -> Calibration:
    """What ``write_calibration`` wrote.

    Raises
    ------
    FileFormatError
        For a file that is not ours, damaged or newer.
    """
    file = as_path("path", path)
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        ours = (whole["format"], repr(whole["version"])) == (FORMAT, str(VERSION))
        if not ours or sealed(whole)[SEAL] != whole[SEAL]:
            raise FileFormatError(f"{file} is no calibration of version {VERSION}, or was changed.")
        tensors = {name: _from_json(value) for name, value in whole["tensors"].items()}
        return calibration_from_json(whole["calibration"], tensors)
    except (OSError, *MALFORMED) as error:
        raise FileFormatError(f"{file} is no calibration that can be read: {error}.") from error


def _to_json(tensor: Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    values = [_finite(x) for x in tensor.detach().cpu().flatten().tolist()]
    return {"dtype": dtype, "shape": list(tensor.shape), "values": values}


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


def _from_json(value: dict[str, Any]) -> Tensor:
    numbers = [float(x) if isinstance(x, str) else x for x in value["values"]]
    return torch.tensor(numbers, dtype=DTYPES[value["dtype"]]).reshape(value["shape"])
