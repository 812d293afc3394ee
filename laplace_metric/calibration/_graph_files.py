"""Sizes, types and tracing that graphs of calibrations and of rules share."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.errors import InputError
from laplace_metric.export._file_formats import check_format

# A calibration in a file: distances, labels, epistemic -> match probabilities.


SIZES = ("batch", "neighbours")


def checked_type(format: str, dtype: torch.dtype | None) -> torch.dtype:
    check_format(format)
    dtype = torch.float32 if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype={dtype}: pass torch.float32 or torch.float64.")
    return dtype


def traced_program(
    module: nn.Module, given: list[Tensor], shapes: Any
) -> torch.export.ExportedProgram:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(
            module.eval(), tuple(given), dynamic_shapes={"tensors": shapes}, strict=False
        )
