"""Sizes, types and tracing that graphs of calibrations and of rules share.

A calibrator as a plain graph: tables of knots are compared, not searched.

With knots (x_1, y_1), ..., (x_n, y_n), x ascending, a score l lies behind knot

    j(l) = #{i : x_i <= l'},    l' = max(l, x_1)
    p(l) = y_j + b_j (l' - x_j),    b_j = (y_{j+1} - y_j) / (x_{j+1} - x_j),  b_n = 0

ONNX has no binary search: the counts compare with all, B k n numbers at once.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.calibration.probability._calibrators import Calibrator
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


class KnotTable(nn.Module):
    """Scores -> probabilities, linear between knots and flat beyond: ``numpy.interp``.

    Parameters
    ----------
    numbers : [2, n]
        Positions x of the knots, and their probabilities y, as of ``Calibrator`` "isotonic".

    Examples
    --------
    >>> table = KnotTable(np.array([[0.0, 1.0, 3.0], [0.2, 0.4, 0.8]]))
    >>> table(torch.tensor([-5.0, 0.5, 2.0, 9.0]))
    tensor([0.2000, 0.3000, 0.6000, 0.8000], dtype=torch.float64)
    """

    x: Tensor
    y: Tensor
    slope: Tensor

    def __init__(self, numbers: Float[np.ndarray, "2 n"]) -> None:
        super().__init__()
        self.register_buffer("x", torch.tensor(numbers[0]))
        self.register_buffer("y", torch.tensor(numbers[1]))
        width = self.x.diff()
        slope = torch.where(width > 0, self.y.diff() / width, 0.0)
        self.register_buffer("slope", torch.cat([slope, self.x.new_zeros(1)]))

    def forward(self, logit: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Return probabilities of the scores' shape."""
        raised = logit.maximum(self.x[0])
        j = (self.x <= raised[..., None]).sum(-1) - 1
        return self.y[j] + self.slope[j] * (raised - self.x[j])


class OfConstants(nn.Module):
    """Numbers are buffers, for ONNX rounds those of Python to float32."""

    def _constant(self, name: str, numbers: Any) -> Any:
        self.register_buffer(f"_{name}", torch.tensor(numbers, dtype=torch.float64))
        return getattr(self, f"_{name}")

    def _calibrator_of(self, calibrator: Calibrator) -> Any:
        self.knots = KnotTable(calibrator.numbers) if calibrator.kind == "isotonic" else None
        beta = replace(calibrator, numbers=self._constant("beta", calibrator.numbers))
        return self.knots or beta


class CalibratorGraph(OfConstants):
    """Scores -> probabilities of one calibrator, where a graph has several."""

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self._probability = self._calibrator_of(calibrator)

    def forward(self, logit: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Return probabilities of the scores' shape."""
        probability: Tensor = self._probability(logit)
        return probability
