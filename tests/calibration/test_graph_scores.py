"""Scores far from zero in a graph of a calibrator; ONNX needs ``[export]``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from laplace_metric.calibration._calibrators import Calibrator
from laplace_metric.export._write import write_program

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


class Applied(nn.Module):
    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.calibrator = calibrator

    def forward(self, logit: Tensor) -> Tensor:
        return self.calibrator(logit)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("slopes", [(0.0, 1.0), (0.02, 0.01)])
def test_large_scores_are_those_of_python(slopes: tuple[float, float], tmp_path: Path) -> None:
    """A log of a sigmoid is -inf below -37, and 0 times it NaN."""
    numbers = torch.tensor([[*slopes, -0.5], [0.0, 0.0, 0.0]], dtype=torch.float64)
    module = Applied(Calibrator("beta", numbers)).eval()
    logit = torch.tensor([-1e6, -800, -100, -38, -1, 0, 1, 38, 100, 800, 1e6]).double()
    program = torch.export.export(module, (logit,), strict=False)
    write_program(
        program,
        tmp_path / "v.onnx",
        "onnx",
        {"inputs": '["logit"]', "outputs": '["p"]'},
        ("batch",),
    )
    session = onnxruntime.InferenceSession(str(tmp_path / "v.onnx"))
    found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: logit.numpy()})[0])
    torch.testing.assert_close(found, module(logit), rtol=0, atol=1e-12)
