"""What a Laplace posterior on a deterministic encoder says of the process's kappa."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.recovery.encoders import Encoder
from benchmarks.recovery.process import Process
from laplace_metric import LaplaceEmbedder

PAIRS = 4_096
HESSIANS = ("fixed", "positives", "full")


def laplace_concentration(
    process: Process, encoder: Encoder, x: Tensor, hessian: str
) -> tuple[Tensor, float]:
    """Concentrations [n] of x, and the share of the curvature that was clipped.

    The encoder's last layer gets the posterior; a pair (x, x+) is a class of two, every other pair
    of inputs is negative.
    """
    pairs = process.pairs(PAIRS)
    labels = torch.arange(PAIRS).repeat(2)
    embedder = LaplaceEmbedder(encoder.location, hessian=hessian, structure="diag")
    embedder.fit([(torch.cat(pairs) - 0.5, labels)], progress=False)
    return embedder(x - 0.5).concentration, embedder.hessian_.clipped_fraction
